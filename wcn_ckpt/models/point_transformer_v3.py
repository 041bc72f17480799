"""Point Transformer V3.

Xiaoyang Wu et al.: "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from wcn_ckpt.geometry import WARPCONVNET_ORDERS, PointOrdering, Voxels
from wcn_ckpt.geometry.origins import Origin
from wcn_ckpt.models.attention_unet import AttentionUNet, check_levels, check_options
from wcn_ckpt.nn.modules.attention import PatchAttention
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.feature_layers import Linear
from wcn_ckpt.nn.modules.patch_attention_block import PatchAttentionBlock
from wcn_ckpt.nn.modules.sequential import Sequential
from wcn_ckpt.nn.modules.sparse_conv import SparseConv3d
from wcn_ckpt.nn.modules.sparse_pool import SparseMaxPool, SparseUnpool

__all__ = ["PatchAttention", "PatchAttentionBlock", "PointTransformerV3", "SerializedUnpooling"]


class SerializedUnpooling(SpatialModule):
    """Adds the features of the parents to those of a finer level, both projected first.

    Args:
        in_channels: channels of the coarse level.
        skip_channels: channels of the fine level.
        out_channels: channels of the sum.
    """

    def __init__(self, in_channels: int, skip_channels: int, out_channels: int) -> None:
        """See the class."""
        super().__init__()
        self.proj = _projection(in_channels, out_channels)
        self.proj_skip = _projection(skip_channels, out_channels)
        self.unpool = SparseUnpool(2, 2, concat_unpooled_st=False)

    def forward(self, x: Voxels, skip: Voxels) -> Voxels:
        """Return the sum at the voxels of `skip`.

        Args:
            x: coarse voxels, the parents of those of `skip` under stride 2.
            skip: fine voxels.
        """
        out: Voxels = self.proj_skip(skip) + self.unpool(self.proj(x), skip)
        return out


class PointTransformerV3(AttentionUNet):
    """Levels of patch attention down to a coarse grid and up again, with skips.

    Every block is a checkpoint boundary: the sum of the depths, 22 by default. Sequences that begin
    with `enc` have one entry per level, those with `dec` one less; the first is the finest level's.

    Args:
        in_channels: channels of the input.
        enc_depths: number of blocks of each level of the encoder.
        enc_channels: channels of each level of the encoder.
        enc_num_head: attention heads of each level of the encoder.
        enc_patch_size: rows of a patch on each level of the encoder.
        dec_depths: number of blocks of each level of the decoder.
        dec_channels: channels of each level of the decoder.
        dec_num_head: attention heads of each level of the decoder.
        dec_patch_size: rows of a patch on each level of the decoder.
        mlp_ratio: hidden channels of an MLP per channel.
        qkv_bias: whether queries, keys and values have a bias.
        qk_scale: factor of the attention products; by default `head_channels ** -0.5`.
        attn_drop: probability of dropping an attention weight.
        proj_drop: probability of dropping a channel behind the attention and in the MLP.
        drop_path: probability of dropping a row of a branch, the same in every block.
        orders: curves that blocks are given, members of `POINT_ORDERING` or their names.
        shuffle_orders: whether each block is given one of them at random, or in turn.
        attn_type: `"patch"`.
        use_checkpoint: whether the blocks start with checkpointing enabled.
        out_channels: channels of a last linear layer; None for no such layer.
        origin: `"cloud"` for results that do not depend on the other clouds; `"batch"` starts
            curves at the least corner of the whole batch, as WarpConvNet does.

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
        dec_depths: Sequence[int] = (2, 2, 2, 2),
        dec_channels: Sequence[int] = (64, 64, 128, 256),
        dec_num_head: Sequence[int] = (4, 4, 8, 16),
        dec_patch_size: Sequence[int] = (1024,) * 4,
        mlp_ratio: float = 4,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        drop_path: float = 0.2,
        orders: Sequence[PointOrdering | str] = WARPCONVNET_ORDERS,
        shuffle_orders: bool = True,
        attn_type: str = "patch",
        use_checkpoint: bool = False,
        out_channels: int | None = None,
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
        self.orders = tuple(PointOrdering.parse(o) for o in check_options("orders", orders))
        self.shuffle_orders = shuffle_orders
        self._enc_options = [self.orders] * levels
        self._dec_options = [self.orders] * (levels - 1)

        def stage(level: int, depth: int, channels: int, heads: int, patch: int) -> nn.ModuleList:
            return nn.ModuleList(
                PatchAttentionBlock(
                    channels,
                    channels,
                    patch,
                    heads,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=qkv_bias,
                    qk_scale=qk_scale,
                    attn_drop=attn_drop,
                    proj_drop=proj_drop,
                    drop_path=drop_path,
                    attn_type=attn_type,
                    order=self.orders[level % len(self.orders)],
                    use_checkpoint=use_checkpoint,
                    origin=origin,
                )
                for _ in range(depth)
            )

        encoder = list(zip(enc_depths, enc_channels, enc_num_head, enc_patch_size, strict=True))
        decoder = list(zip(dec_depths, dec_channels, dec_num_head, dec_patch_size, strict=True))
        widths = (*dec_channels, enc_channels[-1])
        upwards = range(levels - 2, -1, -1)
        self.conv = Sequential(
            SparseConv3d(in_channels, enc_channels[0], 5, bias=False),
            nn.BatchNorm1d(enc_channels[0]),
            nn.GELU(),
        )
        self.encs = nn.ModuleList(stage(level, *encoder[level]) for level in range(levels))
        self.down_convs = nn.ModuleList(
            Sequential(
                nn.Linear(enc_channels[level], enc_channels[level + 1]),
                SparseMaxPool(2, 2),
                nn.BatchNorm1d(enc_channels[level + 1]),
                nn.GELU(),
            )
            for level in range(levels - 1)
        )
        self.up_convs = nn.ModuleList(
            SerializedUnpooling(widths[level + 1], enc_channels[level], widths[level])
            for level in upwards
        )
        self.decs = nn.ModuleList(stage(level, *decoder[level]) for level in upwards)
        self.final = nn.Identity() if out_channels is None else Linear(widths[0], out_channels)


def _projection(in_channels: int, out_channels: int) -> Sequential:
    return Sequential(nn.Linear(in_channels, out_channels), nn.BatchNorm1d(out_channels), nn.GELU())
