"""The sparse flow model of TRELLIS.2, for structured latents on voxels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models.trellis2.flow import FlowModel, PositionMode
from wcn_ckpt.nn.modules.arguments import check_same_dtype, check_voxels
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.embeddings import SinusoidalPositionEmbedder
from wcn_ckpt.nn.modules.errors import UnsupportedError
from wcn_ckpt.nn.modules.sparse_dit import ModulatedSparseTransformerCrossBlock


class SLatFlowModel(FlowModel, SpatialModule):
    """Predicts the velocity of latents on voxels; its blocks are checkpoint boundaries.

    Args:
        resolution: cells along each axis of the grid; kept, without effect.
        in_channels: channels of the input.
        model_channels: channels of the blocks.
        cond_channels: channels of the condition.
        out_channels: channels of the output.
        num_blocks: number of blocks.
        num_heads: heads of the attention; `model_channels // num_head_channels` by default.
        num_head_channels: channels per head, where `num_heads` is not given.
        mlp_ratio: width of the feed-forward networks as a multiple of `model_channels`.
        pe_mode: `"ape"` adds sinusoids of the coordinates, `"rope"` rotates queries and keys.
        rope_freq: frequencies of the rotation.
        dtype: dtype that the blocks compute in, such as `"bfloat16"`.
        use_checkpoint: whether the blocks start with checkpointing enabled.
        share_mod: whether one layer makes the modulation of all blocks.
        initialization: kept, without effect.
        qk_rms_norm: whether self-attention normalizes queries and keys.
        qk_rms_norm_cross: the same for the attention to the condition.
        **kwargs: accepted for configurations of other versions, without effect.

    Raises:
        KeyError: the dtype is unknown; also a ValueError.
        TypeError: a size is no integer.
        ValueError: a size is not positive or not divisible, or `pe_mode` is unknown.
    """

    def __init__(
        self,
        resolution: int,
        in_channels: int,
        model_channels: int,
        cond_channels: int,
        out_channels: int,
        num_blocks: int,
        num_heads: int | None = None,
        num_head_channels: int = 64,
        mlp_ratio: float = 4.0,
        pe_mode: PositionMode = "ape",
        rope_freq: tuple[float, float] = (1.0, 10000.0),
        dtype: str | torch.dtype = "float32",
        use_checkpoint: bool = False,
        share_mod: bool = False,
        initialization: str = "vanilla",
        qk_rms_norm: bool = False,
        qk_rms_norm_cross: bool = False,
        **kwargs: Any,
    ) -> None:
        """See the class."""
        super().__init__(
            ModulatedSparseTransformerCrossBlock,
            resolution,
            in_channels,
            model_channels,
            cond_channels,
            out_channels,
            num_blocks,
            num_heads,
            num_head_channels,
            mlp_ratio,
            pe_mode,
            rope_freq,
            dtype,
            use_checkpoint,
            share_mod,
            initialization,
            qk_rms_norm,
            qk_rms_norm_cross,
        )
        if pe_mode == "ape":
            self.pos_embedder = SinusoidalPositionEmbedder(model_channels, 3)

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
