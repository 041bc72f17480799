"""The dense flow model of TRELLIS.2, for coarse occupancy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wcn_ckpt.models.trellis2.flow import FlowModel
from wcn_ckpt.nn.modules.arguments import check_same_dtype, check_tensor
from wcn_ckpt.nn.modules.dit import ModulatedTransformerCrossBlock
from wcn_ckpt.nn.modules.embeddings import RotaryPositionEmbedder, SinusoidalPositionEmbedder


class SparseStructureFlowModel(FlowModel):
    """Predicts the velocity of a dense latent grid; its blocks are checkpoint boundaries.

    The arguments are those of `FlowModel`. With `pe_mode="ape"` sinusoids are added to the tokens,
    with `"rope"` queries and keys are rotated.

    Attributes:
        pos_emb: with `"ape"`, (R ** 3, C); not in the state.
        rope_phases: with `"rope"`, (R ** 3, d / 2), complex64; not in the state.
    """

    block_class = ModulatedTransformerCrossBlock

    pos_emb: Tensor
    rope_phases: Tensor

    def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """Predict.

        Args:
            x: (B, in_channels, R, R, R).
            t: (B,) times.
            cond: (B, L_c, cond_channels).

        Returns:
            (B, out_channels, R, R, R).

        Raises:
            TypeError: an argument is no floating point tensor, or `x` is of another dtype than the
                first layer.
            ValueError: a shape is another one.
        """
        side = (self.resolution,) * 3
        check_tensor(self, x, ("B", self.in_channels, *side))
        check_same_dtype(self, x, self.input_layer.weight)
        mod, context = self.time_and_condition(t, cond, len(x))
        h = self.input_layer(x.flatten(2).transpose(1, 2))
        phases = None
        if self.pe_mode == "ape":
            h = h + self.pos_emb
        else:
            phases = self.rope_phases
        h = self.to_block_dtype(h)
        for block in self.blocks:
            h = block(h, mod, context, phases)
        h = self.out_layer(F.layer_norm(h.to(x.dtype), h.shape[-1:]))
        out: Tensor = h.transpose(1, 2).reshape(len(x), self.out_channels, *side)
        return out

    def _add_position_encoding(self) -> None:
        if self.pe_mode == "ape":
            embed = SinusoidalPositionEmbedder(self.model_channels, 3)
            self.register_buffer("pos_emb", embed(self._grid().float()), persistent=False)
        else:
            self.register_buffer("rope_phases", self._phases(), persistent=False)

    def _grid(self) -> Tensor:
        """Return the cells (R ** 3, 3) of the grid, z fastest."""
        axis = torch.arange(self.resolution, device=self.input_layer.weight.device)
        return torch.cartesian_prod(axis, axis, axis).reshape(-1, 3)

    def _phases(self) -> Tensor:
        head_dim = self.model_channels // self.num_heads
        phases: Tensor = RotaryPositionEmbedder(head_dim, 3, self.rope_freq)(self._grid())
        return phases

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # A cast of the module to a real dtype would drop the imaginary part of the phases.
        phases = self._buffers.pop("rope_phases", None)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types
        if phases is not None:
            self.register_buffer("rope_phases", self._phases(), persistent=False)
        return self
