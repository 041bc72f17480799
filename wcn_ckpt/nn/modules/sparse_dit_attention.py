"""Attention of sparse transformer blocks: voxels of a cloud attend to voxels of the same cloud."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.functional.cloud_attention import sparse_scaled_dot_product_attention
from wcn_ckpt.nn.functional.rotary import rotate
from wcn_ckpt.nn.modules.arguments import check_geometry, check_voxels
from wcn_ckpt.nn.modules.base import G, SpatialModule
from wcn_ckpt.nn.modules.dit_attention import (
    AttentionProjections,
    AttentionType,
    check_context,
)
from wcn_ckpt.nn.modules.embeddings import RotaryPositionEmbedder
from wcn_ckpt.nn.modules.errors import UnsupportedError

__all__ = [
    "SparseMultiHeadAttention",
    "SparseRotaryPositionEmbedder",
    "sparse_scaled_dot_product_attention",
]


class SparseRotaryPositionEmbedder(RotaryPositionEmbedder, SpatialModule):
    """Phases that encode voxel coordinates; see `RotaryPositionEmbedder`.

    Coordinates are taken as they are, without an origin of the batch or of the cloud, so the phases
    of a voxel depend on nothing but its own cell.
    """

    def forward(self, x: Voxels) -> Tensor:  # type: ignore[override]  # voxels, not coordinates
        """Return phases (N, head_dim / 2), complex64.

        Raises:
            TypeError: `x` is not `Voxels`.
        """
        if not isinstance(x, Voxels):
            raise TypeError(f"{type(self).__name__} takes Voxels, got {type(x).__name__}")
        embed = super().forward
        key = ("rotary phases", self.head_dim, self.dim, self.rope_freq)
        return x.batched_coordinates.cache.get(key, lambda: embed(x.coordinate_tensor))


class SparseMultiHeadAttention(AttentionProjections, SpatialModule):
    """Multi-head attention inside each cloud, or from each cloud to its context.

    All clouds are attended to in one padded call, see
    `wcn_ckpt.nn.functional.cloud_attention`. To use another kernel, such as the variable-length one
    of flash-attn, override `attend`, or assign a function of the same arguments to the attribute
    `attend` of a module.

    Args:
        channels: channels C.
        num_heads: number of heads H; divides C.
        ctx_channels: channels of the context; C by default.
        type: `"self"` or `"cross"`.
        attn_mode: `"full"`.
        qkv_bias: whether queries, keys and values have a bias.
        use_rope: whether self-attention rotates queries and keys by their coordinates.
        rope_freq: frequencies of the rotation.
        qk_rms_norm: whether queries and keys are normalized, head by head.

    Raises:
        TypeError: a number is no integer.
        NotImplementedError: `attn_mode` is not `"full"`; also a ValueError.
        ValueError: C is not divisible by H, a number is not positive, the type is unknown, or
            cross-attention is to be rotated.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        ctx_channels: int | None = None,
        type: AttentionType = "self",
        attn_mode: str = "full",
        qkv_bias: bool = True,
        use_rope: bool = False,
        rope_freq: tuple[float, float] = (1.0, 10000.0),
        qk_rms_norm: bool = False,
    ) -> None:
        """See the class."""
        super().__init__(
            channels, num_heads, ctx_channels, type, qkv_bias, use_rope, rope_freq, qk_rms_norm
        )
        if attn_mode != "full":
            raise UnsupportedError(
                f"attn_mode must be 'full', got {attn_mode!r}; windows over voxels are not built"
            )
        if use_rope and self.attends_to_context:
            raise ValueError(
                "use_rope=True turns queries and keys by the same coordinates, so it needs "
                "type='self', got type='cross'"
            )
        if use_rope:
            self.rope = SparseRotaryPositionEmbedder(self.head_dim, rope_freq=rope_freq)

    def forward(self, x: G, context: Tensor | Voxels | None = None) -> G:
        """Attend.

        Args:
            x: voxels with C channels; without `use_rope` also points.
            context: for cross-attention, (B, L_c, ctx_channels), or voxels with `ctx_channels`
                channels, in as many clouds as `x` has.

        Returns:
            The same voxels, C channels. A cloud without voxels stays one; a voxel whose context is
            empty attends to nothing, so only the bias of the last layer is left.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: an argument is missing or superfluous, or channels or clouds do not fit.
        """
        check_geometry(self, x, self.channels)
        if self.attends_to_context:
            check_sparse_context(self, context, x.batch_size, self.ctx_channels)
        elif context is not None:
            raise ValueError(
                "self-attention takes no context; build the attention with type='cross'"
            )
        rows = None if context is None else _context_rows(context)
        query, key, value = self.project(x.feature_tensor, rows)
        if self.use_rope:
            phases = self.rope(x)
            query, key = rotate(query, phases), rotate(key, phases)
        key_offsets = None if context is None else _context_offsets(context)
        heads = self.attend(query, key, value, x.offsets, key_offsets)
        return x.replace_features(self.merge(heads))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_offsets: Tensor,
        key_offsets: Tensor | None,
    ) -> Tensor:
        """Return attended values (T_q, H, d); see `sparse_scaled_dot_product_attention`."""
        return sparse_scaled_dot_product_attention(query, key, value, query_offsets, key_offsets)


def check_sparse_context(
    module: nn.Module, context: object, batch_size: int, channels: int
) -> None:
    """Check a context that clouds attend to: (B, L_c, channels), or voxels in B clouds.

    Raises:
        TypeError: it is neither a floating point tensor nor voxels.
        ValueError: it is missing, or channels or clouds do not fit.
    """
    if not isinstance(context, Voxels):
        check_context(module, context, batch_size, channels)
        return
    check_voxels(module, context, channels, "context")
    if context.batch_size != batch_size:
        raise ValueError(
            f"context has {context.batch_size} clouds and x has {batch_size}, but cloud b attends "
            "to context b; Voxels.from_feats_coords(..., batch_size=) keeps empty clouds at the end"
        )


def _context_rows(context: Tensor | Voxels) -> Tensor:
    return context.feature_tensor if isinstance(context, Voxels) else context.flatten(0, 1)


def _context_offsets(context: Tensor | Voxels) -> Tensor:
    if isinstance(context, Voxels):
        return context.offsets
    batch_size, length = context.shape[:2]
    return torch.arange(batch_size + 1, device="cpu") * length
