"""SpaCeFormer: a U-Net of curve, window and whole-cloud attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from wcn_ckpt.geometry import WARPCONVNET_ORDERS, PointOrdering
from wcn_ckpt.geometry.origins import Origin
from wcn_ckpt.geometry.windows import WindowOffset, check_window_offset
from wcn_ckpt.models.attention_unet import AttentionUNet, Options, check_levels, check_options
from wcn_ckpt.models.spaceformer.attention_types import parse_attention_types
from wcn_ckpt.nn.modules.feature_layers import Linear
from wcn_ckpt.nn.modules.sequential import Sequential, TupleSequential
from wcn_ckpt.nn.modules.space_attention import (
    PostNormBlock,
    PreNormBlock,
    SpaCeFormerBlockBase,
    StreamNormBlock,
    block_factory,
)
from wcn_ckpt.nn.modules.sparse_conv import SparseConv3d
from wcn_ckpt.nn.modules.sparse_pool import SparseMaxPool, SparseUnpool

__all__ = [
    "PostNormBlock",
    "PreNormBlock",
    "SpaCeFormer",
    "SpaCeFormerBlockBase",
    "StreamNormBlock",
    "block_factory",
]


class SpaCeFormer(AttentionUNet):
    """Levels of attention blocks down to a coarse grid and up again, with skips.

    Every block is a checkpoint boundary: the sum of the depths, 22 by default. Sequences that begin
    with `enc` have one entry per level, those with `dec` one less; the first is the finest level's.

    Args:
        in_channels: channels of the input.
        enc_depths: number of blocks of each level of the encoder.
        enc_channels: channels of each level of the encoder.
        enc_num_head: attention heads of each level of the encoder.
        enc_patch_size: on levels of curve attention the rows of a patch, on levels of space
            attention the edge of a window in cells (32 to 64 is usual).
        enc_attn_types: kinds of attention: one name (`"curve"`, `"space"`, `"all"`), a letter per
            level (`"ssccc"`), or a name per level.
        dec_depths: number of blocks of each level of the decoder.
        dec_channels: channels of each level of the decoder.
        dec_num_head: attention heads of each level of the decoder.
        dec_patch_size: as `enc_patch_size`.
        dec_attn_types: as `enc_attn_types`.
        block_type: `"pre_norm"`, `"post_norm"` or `"stream_norm"`.
        kernel_size: kernel size of the blocks' convolutions.
        mlp_ratio: hidden channels of a feed-forward layer per channel.
        qkv_bias: whether queries, keys and values have a bias.
        qk_scale: factor of the attention products; by default `head_channels ** -0.5`.
        attn_drop: probability of dropping an attention weight.
        proj_drop: probability of dropping a channel behind the attention.
        drop_path: probability of dropping a row of a branch, the same in every block.
        shuffle_orders: whether each block is given a random option of its level, or one in turn.
        use_rope: whether queries and keys are rotated by their cells.
        rope_base: base of the rotations on all levels, instead of the two sequences below.
        enc_rope_bases: base on each level of the encoder; further entries are not used.
        dec_rope_bases: base on each level of the decoder; further entries are not used.
        voxel_offsets: window offsets that blocks on space and all levels are given.
        patch_orders: curves that blocks on curve levels are given.
        conv_norm_layer: norm of stem, down and up steps, called with a number of channels; None
            for none.
        out_channels: channels of a last linear layer; None for no such layer.
        use_checkpoint: whether the blocks start with checkpointing enabled.
        origin: `"cloud"` for results that do not depend on the other clouds; `"batch"` starts
            curves, windows and rotations at the least corner of the whole batch, as WarpConvNet
            does.

    Raises:
        TypeError: a value is of the wrong type, or an argument is unknown.
        ValueError: a sequence has the wrong length, a value is out of range, or a name is unknown.
    """

    def __init__(
        self,
        in_channels: int = 6,
        enc_depths: Sequence[int] = (2, 2, 2, 6, 2),
        enc_channels: Sequence[int] = (32, 64, 128, 256, 512),
        enc_num_head: Sequence[int] = (2, 4, 8, 16, 32),
        enc_patch_size: Sequence[int] = (1024,) * 5,
        enc_attn_types: str | Sequence[str] = "curve",
        dec_depths: Sequence[int] = (2, 2, 2, 2),
        dec_channels: Sequence[int] = (64, 64, 128, 256),
        dec_num_head: Sequence[int] = (4, 4, 8, 16),
        dec_patch_size: Sequence[int] = (1024,) * 4,
        dec_attn_types: str | Sequence[str] = "curve",
        block_type: str = "pre_norm",
        kernel_size: int = 3,
        mlp_ratio: float = 2.0,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.2,
        shuffle_orders: bool = True,
        use_rope: bool = False,
        rope_base: float | None = None,
        enc_rope_bases: Sequence[float] = (250,) * 5,
        dec_rope_bases: Sequence[float] = (250,) * 4,
        voxel_offsets: Sequence[WindowOffset] = ("zero", "xyz"),
        patch_orders: Sequence[PointOrdering | str] = WARPCONVNET_ORDERS,
        conv_norm_layer: Callable[[int], nn.Module] | None = nn.BatchNorm1d,
        out_channels: int | None = None,
        use_checkpoint: bool = False,
        origin: Origin = "cloud",
    ) -> None:
        """See the class."""
        super().__init__()
        levels = max(len(enc_depths), 1)
        check_levels(
            levels,
            "one per level of enc_depths",
            enc_depths=enc_depths,
            enc_channels=enc_channels,
            enc_num_head=enc_num_head,
            enc_patch_size=enc_patch_size,
        )
        check_levels(
            levels - 1,
            "one less than enc_depths has",
            dec_depths=dec_depths,
            dec_channels=dec_channels,
            dec_num_head=dec_num_head,
            dec_patch_size=dec_patch_size,
        )
        enc_types = parse_attention_types(enc_attn_types, levels, "enc_attn_types")
        dec_types = parse_attention_types(dec_attn_types, levels - 1, "dec_attn_types")
        enc_bases = _rope_bases("enc_rope_bases", rope_base, enc_rope_bases, levels)
        dec_bases = _rope_bases("dec_rope_bases", rope_base, dec_rope_bases, levels - 1)
        block_class = block_factory(block_type)
        curves = [PointOrdering.parse(o) for o in check_options("patch_orders", patch_orders)]
        offsets = [check_window_offset(o) for o in check_options("voxel_offsets", voxel_offsets)]
        self.patch_orders, self.voxel_offsets = tuple(curves), tuple(offsets)
        self.shuffle_orders = shuffle_orders
        upwards = range(levels - 2, -1, -1)

        def options(kind: str) -> Options:
            return self.patch_orders if kind == "curve" else self.voxel_offsets

        self._enc_options = [options(kind) for kind in enc_types]
        self._dec_options = [options(dec_types[level]) for level in upwards]

        def stage(
            depth: int, channels: int, heads: int, patch: int, kind: str, base: float
        ) -> nn.ModuleList:
            return nn.ModuleList(
                block_class(
                    channels,
                    channels,
                    patch,
                    heads,
                    kernel_size=kernel_size,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=qkv_bias,
                    qk_scale=qk_scale,
                    attn_drop=attn_drop,
                    proj_drop=proj_drop,
                    drop_path=drop_path,
                    attn_type=kind,
                    order=self._choose(options(kind), place),
                    use_rope=use_rope,
                    rope_base=base,
                    use_checkpoint=use_checkpoint,
                    origin=origin,
                )
                for place in range(depth)
            )

        def norm(channels: int) -> nn.Module:
            return nn.Identity() if conv_norm_layer is None else conv_norm_layer(channels)

        encoder = _per_level(
            enc_depths, enc_channels, enc_num_head, enc_patch_size, enc_types, enc_bases
        )
        decoder = _per_level(
            dec_depths, dec_channels, dec_num_head, dec_patch_size, dec_types, dec_bases
        )
        widths = (*dec_channels, enc_channels[-1])
        self.conv = Sequential(
            SparseConv3d(in_channels, enc_channels[0], 5), norm(enc_channels[0]), nn.GELU()
        )
        self.encs = nn.ModuleList(stage(*encoder[level]) for level in range(levels))
        self.down_convs = nn.ModuleList(
            Sequential(
                nn.Linear(enc_channels[level], enc_channels[level + 1]),
                SparseMaxPool(2, 2),
                norm(enc_channels[level + 1]),
                nn.GELU(),
            )
            for level in range(levels - 1)
        )
        self.up_convs = nn.ModuleList(
            TupleSequential(
                nn.Linear(widths[level + 1], widths[level]),
                SparseUnpool(2, 2, concat_unpooled_st=True),
                nn.Linear(widths[level] + enc_channels[level], widths[level]),
                norm(widths[level]),
                nn.GELU(),
                tuple_layer=1,
            )
            for level in upwards
        )
        self.decs = nn.ModuleList(stage(*decoder[level]) for level in upwards)
        self.final = nn.Identity() if out_channels is None else Linear(widths[0], out_channels)


def _per_level(*settings: Sequence[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*settings, strict=True))


def _rope_bases(
    name: str, base: float | None, bases: Sequence[float], levels: int
) -> Sequence[float]:
    if base is not None:
        return [base] * levels
    if len(bases) < levels:
        raise ValueError(
            f"{name} needs an entry for each of the {levels} levels, got {len(bases)}: "
            f"{tuple(bases)}; or pass rope_base"
        )
    return bases[:levels]
