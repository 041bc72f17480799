"""The blocks of SpaCeFormer: attention along a curve, inside windows, or between all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from wcn_ckpt.checkpointing import GradientCheckpointingMixin
from wcn_ckpt.geometry import PointOrdering, Serialization
from wcn_ckpt.geometry.origins import Origin
from wcn_ckpt.geometry.windows import WindowOffset
from wcn_ckpt.nn.modules.attention import PatchAttention, resolved_order
from wcn_ckpt.nn.modules.base import G, SpatialModule
from wcn_ckpt.nn.modules.checks import check_positive, hidden_width
from wcn_ckpt.nn.modules.feature_layers import LayerNorm
from wcn_ckpt.nn.modules.mlp import FeedForward
from wcn_ckpt.nn.modules.patch_attention_block import (
    NormLayer,
    conv_encoding,
    drop_path_layer,
    width_shortcut,
)
from wcn_ckpt.nn.modules.window_attention import AllAttention, SpaceAttention

__all__ = [
    "AllAttention",
    "FeedForward",
    "PatchAttention",
    "PostNormBlock",
    "PreNormBlock",
    "SpaCeFormerBlockBase",
    "SpaceAttention",
    "StreamNormBlock",
    "block_factory",
]

Order = PointOrdering | Serialization | WindowOffset | Sequence[float]
"""A curve or a permutation for attention along a curve, a window offset for the others."""

ATTENTION_TYPES = ("curve", "space", "all")


class SpaCeFormerBlockBase(GradientCheckpointingMixin, SpatialModule):
    """What the three layouts of a block share; a checkpoint boundary.

    Every layout begins with `x = conv(x) + conv_shortcut(x)`. Every child may be replaced by a
    module that maps a geometry to a geometry; `attention` is given the order too.

    Args:
        in_channels: channels of the input.
        attention_channels: channels of the attention and the output.
        patch_size: rows of a patch along a curve, or edge of a window in cells; without effect
            for attention between all rows.
        num_heads: number of attention heads.
        kernel_size: kernel size of the convolution.
        mlp_ratio: hidden channels of the feed-forward layer per channel.
        qkv_bias: whether queries, keys and values have a bias.
        qk_scale: factor of the attention products; by default `(channels / heads) ** -0.5`.
        attn_drop: probability of dropping an attention weight.
        proj_drop: probability of dropping a channel behind the attention.
        drop_path: probability of dropping a row of a branch.
        norm_layer: called with a number of channels; returns the norm.
        attn_type: `"curve"`, `"space"` (windows) or `"all"` (whole clouds).
        order: the curve where forward is given none; for windows the offset, and any member of
            `PointOrdering` stands for `"zero"`.
        use_rope: whether queries and keys are rotated by their cells.
        rope_base: see `wcn_ckpt.nn.functional.voxel_rope`.
        use_checkpoint: whether the block starts with checkpointing enabled.
        origin: where curves, windows and rotations start; see `wcn_ckpt.geometry.origins.Origin`.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of range or a name is unknown.
    """

    def __init__(
        self,
        in_channels: int,
        attention_channels: int,
        patch_size: int,
        num_heads: int,
        kernel_size: int = 3,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.0,
        norm_layer: NormLayer = LayerNorm,
        attn_type: str = "curve",
        order: PointOrdering | WindowOffset = PointOrdering.RANDOM,
        use_rope: bool = False,
        rope_base: float = 250,
        use_checkpoint: bool = False,
        origin: Origin = "cloud",
    ) -> None:
        """See the class."""
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        check_positive(attention_channels, "attention_channels")
        if attn_type not in ATTENTION_TYPES:
            raise ValueError(f"attn_type must be one of {list(ATTENTION_TYPES)}, got {attn_type!r}")
        self.attn_type = attn_type
        self.conv = conv_encoding(in_channels, attention_channels, kernel_size, norm_layer)
        self.conv_shortcut = width_shortcut(in_channels, attention_channels)
        self.norm1 = norm_layer(attention_channels)
        self.attention = self._build_attention(
            attention_channels,
            patch_size,
            order,
            num_heads=num_heads,
            qkv_bias=qkv_bias,
            qk_scale=qk_scale,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            use_rope=use_rope,
            rope_base=rope_base,
            origin=origin,
        )
        self.norm2 = norm_layer(attention_channels)
        self.mlp: nn.Module = FeedForward(
            attention_channels, hidden_width(attention_channels, mlp_ratio)
        )
        self.drop_path = drop_path_layer(drop_path)

    def forward(self, x: G, order: Order | None = None) -> G:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: geometry with `in_channels` channels.
            order: for curves an order or a permutation of the rows, for windows an offset, without
                effect for whole clouds; the constructor's where it is None. What is random is drawn
                here, outside the boundary, and passed in.

        Returns:
            The same rows with `attention_channels` channels.

        Raises:
            TypeError: the order is not one for this kind of attention.
            ValueError: there is no such order or offset, or it does not fit the rows.
        """
        chosen = resolved_order(self.attention, x, order)
        out: G = self._gradient_checkpointed_call(self._forward, x, chosen)
        return out

    def _forward(self, x: G, order: Order) -> G:
        raise NotImplementedError(
            f"{type(self).__name__} has no layout; use PreNormBlock, PostNormBlock or "
            "StreamNormBlock"
        )

    def _build_attention(self, channels: int, size: int, order: Any, **options: Any) -> nn.Module:
        if self.attn_type == "curve":
            return PatchAttention(channels, size, order=order, **options)
        kind = SpaceAttention if self.attn_type == "space" else AllAttention
        offset = "zero" if isinstance(order, PointOrdering) else order
        return kind(channels, size, offset=offset, **options)

    def _encode(self, x: G) -> G:
        out: G = self.conv(x) + self.conv_shortcut(x)
        return out


class PreNormBlock(SpaCeFormerBlockBase):
    """Norms at the head of each branch: `x + attention(norm1(x))`, `x + mlp(norm2(x))`."""

    def _forward(self, x: G, order: Order) -> G:
        x = self._encode(x)
        x = self.drop_path(self.attention(self.norm1(x), order)) + x
        out: G = self.drop_path(self.mlp(self.norm2(x))) + x
        return out


class PostNormBlock(SpaCeFormerBlockBase):
    """Norms behind each sum: `norm1(x + attention(x))`, `norm2(x + mlp(x))`."""

    def _forward(self, x: G, order: Order) -> G:
        x = self._encode(x)
        x = self.norm1(self.drop_path(self.attention(x, order)) + x)
        out: G = self.norm2(self.drop_path(self.mlp(x)) + x)
        return out


class StreamNormBlock(SpaCeFormerBlockBase):
    """Norms on the stream: `x = norm1(x)`, `x + attention(x)`, `x = norm2(x)`, `x + mlp(x)`."""

    def _forward(self, x: G, order: Order) -> G:
        x = self.norm1(self._encode(x))
        x = self.norm2(self.drop_path(self.attention(x, order)) + x)
        out: G = self.drop_path(self.mlp(x)) + x
        return out


_BLOCKS: dict[str, type[SpaCeFormerBlockBase]] = {
    "pre_norm": PreNormBlock,
    "post_norm": PostNormBlock,
    "stream_norm": StreamNormBlock,
}


def block_factory(name: str) -> type[SpaCeFormerBlockBase]:
    """Return the class of a layout: `"pre_norm"`, `"post_norm"` or `"stream_norm"`.

    Raises:
        ValueError: there is no such layout.
    """
    if name not in _BLOCKS:
        raise ValueError(f"block_type must be one of {list(_BLOCKS)}, got {name!r}")
    return _BLOCKS[name]
