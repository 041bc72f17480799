"""The sparse flow model of TRELLIS.2, for structured latents on voxels."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models.trellis2.flow import FlowModel
from wcn_ckpt.nn.modules.arguments import check_same_dtype, check_voxels
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.embeddings import SinusoidalPositionEmbedder
from wcn_ckpt.nn.modules.errors import UnsupportedError
from wcn_ckpt.nn.modules.sparse_dit import ModulatedSparseTransformerCrossBlock


class SLatFlowModel(FlowModel, SpatialModule):
    """Predicts the velocity of latents on voxels; its blocks are checkpoint boundaries.

    The arguments are those of `FlowModel`; `resolution` has no effect. With `pe_mode="ape"`
    sinusoids of the coordinates are added to the input of the blocks, with `"rope"` queries and
    keys are rotated by them.
    """

    block_class = ModulatedSparseTransformerCrossBlock

    def forward(self, x: Voxels, t: Tensor, cond: Tensor) -> Voxels:
        """Predict.

        Args:
            x: voxels with `in_channels` channels in B clouds.
            t: (B,) times.
            cond: (B, L_c, cond_channels).

        Returns:
            The same voxels, `out_channels` channels.

        Raises:
            NotImplementedError: `cond` is a list; also a ValueError.
            TypeError: an argument is of the wrong type, or `x` of another dtype than the first
                layer.
            ValueError: channels or clouds do not fit.
        """
        if isinstance(cond, (list, tuple)):
            raise UnsupportedError(
                f"cond must be one tensor (B, L_c, {self.cond_channels}), got a "
                f"{type(cond).__name__} of {len(cond)}; stack conditions of equal length"
            )
        check_voxels(self, x, self.in_channels)
        check_same_dtype(self, x.batched_features.tensor, self.input_layer.weight)
        mod, context = self.time_and_condition(t, cond, x.batch_size)
        rows = self.to_block_dtype(self.input_layer(x.feature_tensor))
        if self.pe_mode == "ape":
            rows = rows + self.pos_embedder(x.coordinate_tensor.float()).to(rows.dtype)
        h = x.replace_features(rows)
        for block in self.blocks:
            h = block(h, mod, context)
        features = h.batched_features.tensor.to(x.dtype)
        out = self.out_layer(F.layer_norm(features, features.shape[-1:]))
        return x.replace_features(out)

    def _add_position_encoding(self) -> None:
        if self.pe_mode == "ape":
            self.pos_embedder = SinusoidalPositionEmbedder(self.model_channels, 3)
