"""The block of Point Transformer V3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from wcn_ckpt.checkpointing import GradientCheckpointingMixin
from wcn_ckpt.geometry import PointOrdering, Serialization
from wcn_ckpt.geometry.origins import Origin
from wcn_ckpt.nn.modules.activations import GELU, DropPath
from wcn_ckpt.nn.modules.attention import PatchAttention, resolved_order
from wcn_ckpt.nn.modules.base import G, SpatialModule
from wcn_ckpt.nn.modules.checks import check_positive, check_probability, hidden_width
from wcn_ckpt.nn.modules.feature_layers import LayerNorm, Linear
from wcn_ckpt.nn.modules.mlp import MLP
from wcn_ckpt.nn.modules.sequential import Sequential
from wcn_ckpt.nn.modules.sparse_conv import SparseConv3d

NormLayer = Callable[[int], nn.Module]


def conv_encoding(
    in_channels: int, channels: int, kernel_size: int, norm_layer: NormLayer
) -> Sequential:
    """Return the conditional position encoding of a block: convolution, linear layer, norm."""
    return Sequential(
        SparseConv3d(in_channels, in_channels, kernel_size),
        nn.Linear(in_channels, channels),
        norm_layer(channels),
    )


def width_shortcut(in_channels: int, channels: int) -> nn.Module:
    """Return the identity, or a linear layer where the width changes."""
    return nn.Identity() if in_channels == channels else Linear(in_channels, channels)


def drop_path_layer(drop_path: float) -> nn.Module:
    """Return stochastic depth, or the identity where nothing is dropped."""
    return DropPath(drop_path) if check_probability(drop_path, "drop_path") > 0 else nn.Identity()


class PatchAttentionBlock(GradientCheckpointingMixin, SpatialModule):
    """Convolution, patch attention and an MLP, each with a shortcut; a checkpoint boundary.

    `x = conv(x) + conv_shortcut(x)`, `x = drop_path(attention(norm1(x), order)) + x`,
    `x = drop_path(mlp(norm2(x))) + x`. Every child may be replaced by a module that maps a geometry
    to a geometry; `attention` is given the order too.

    Args:
        in_channels: channels of the input.
        attention_channels: channels of the attention and the output.
        patch_size: rows of a patch.
        num_heads: number of attention heads.
        kernel_size: kernel size of the convolution.
        mlp_ratio: hidden channels of the MLP per channel.
        qkv_bias: whether queries, keys and values have a bias.
        qk_scale: factor of the attention products; by default `(channels / heads) ** -0.5`.
        attn_drop: probability of dropping an attention weight.
        proj_drop: probability of dropping a channel behind the attention and in the MLP.
        drop_path: probability of dropping a row of a branch.
        norm_layer: called with a number of channels; returns the norm.
        act_layer: accepted for compatibility, without effect; the MLP has a GELU.
        attn_type: `"patch"`.
        order: the curve where forward is given none.
        use_checkpoint: whether the block starts with checkpointing enabled.
        origin: where curves start; see `wcn_ckpt.geometry.origins.Origin`.

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
        act_layer: Callable[[], nn.Module] = GELU,
        attn_type: str = "patch",
        order: PointOrdering | str = PointOrdering.MORTON_XYZ,
        use_checkpoint: bool = False,
        origin: Origin = "cloud",
    ) -> None:
        """See the class."""
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        check_positive(attention_channels, "attention_channels")
        if attn_type != "patch":
            raise ValueError(f"attn_type must be 'patch', got {attn_type!r}")
        self.conv = conv_encoding(in_channels, attention_channels, kernel_size, norm_layer)
        self.conv_shortcut = width_shortcut(in_channels, attention_channels)
        self.norm1 = norm_layer(attention_channels)
        self.attention: nn.Module = PatchAttention(
            attention_channels,
            patch_size,
            num_heads=num_heads,
            qkv_bias=qkv_bias,
            qk_scale=qk_scale,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            order=order,
            origin=origin,
        )
        self.norm2 = norm_layer(attention_channels)
        self.mlp: nn.Module = MLP(
            attention_channels, hidden_width(attention_channels, mlp_ratio), proj_drop
        )
        self.drop_path = drop_path_layer(drop_path)

    def forward(self, x: G, order: PointOrdering | Serialization | str | None = None) -> G:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: geometry with `in_channels` channels.
            order: the curve, or a permutation of the rows; the constructor's where it is None.
                A random order is drawn here, outside the boundary, and passed in.

        Returns:
            The same rows with `attention_channels` channels.

        Raises:
            ValueError: there is no such order, or it does not fit the rows.
        """
        chosen = resolved_order(self.attention, x, order)
        out: G = self._gradient_checkpointed_call(self._forward, x, chosen)
        return out

    def _forward(self, x: G, order: Any) -> G:
        x = self.conv(x) + self.conv_shortcut(x)
        x = self.drop_path(self.attention(self.norm1(x), order)) + x
        out: G = self.drop_path(self.mlp(self.norm2(x))) + x
        return out
