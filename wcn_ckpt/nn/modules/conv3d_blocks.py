"""Residual and resampling blocks on dense 3D grids."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from wcn_ckpt.nn.functional.pixel_shuffle import pixel_shuffle_3d
from wcn_ckpt.nn.modules.initialization import zero_module
from wcn_ckpt.nn.modules.normalizations import ChannelLayerNorm32, GroupNorm32
from wcn_ckpt.nn.modules.sparse_conv import check_positive

NUM_GROUPS = 32


def norm_layer_3d(norm_type: str, channels: int) -> nn.Module:
    """Return a normalization for grids (B, C, X, Y, Z).

    Args:
        norm_type: `"layer"` over the channels of each cell, or `"group"` over 32 groups.
        channels: channels C.

    Raises:
        ValueError: the name is unknown, or C is not divisible into 32 groups.
    """
    if norm_type == "layer":
        return ChannelLayerNorm32(channels)
    if norm_type != "group":
        raise ValueError(f"norm_type must be 'layer' or 'group', got {norm_type!r}")
    if channels % NUM_GROUPS:
        raise ValueError(
            f"norm_type='group' needs channels divisible by {NUM_GROUPS}, got {channels}"
        )
    return GroupNorm32(NUM_GROUPS, channels)


class ResBlock3d(nn.Module):
    """Two convolutions with a shortcut; the second one starts at zero.

    `y = conv2(silu(norm2(conv1(silu(norm1(x)))))) + skip_connection(x)`.

    Args:
        channels: channels of the input.
        out_channels: channels of the output; `channels` by default.
        norm_type: see `norm_layer_3d`.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or the name is unknown.
    """

    def __init__(
        self, channels: int, out_channels: int | None = None, norm_type: str = "layer"
    ) -> None:
        """See the class."""
        super().__init__()
        out = channels if out_channels is None else out_channels
        check_positive(channels, "channels")
        check_positive(out, "out_channels")
        self.norm1 = norm_layer_3d(norm_type, channels)
        self.norm2 = norm_layer_3d(norm_type, out)
        self.conv1 = nn.Conv3d(channels, out, 3, padding=1)
        self.conv2 = zero_module(nn.Conv3d(out, out, 3, padding=1))
        self.skip_connection: nn.Module = (
            nn.Identity() if channels == out else nn.Conv3d(channels, out, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, out_channels, X, Y, Z)."""
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        out: Tensor = h + self.skip_connection(x)
        return out


class DownsampleBlock3d(nn.Module):
    """Halves a grid along each axis.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        """See the class."""
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, out_channels, X / 2, Y / 2, Z / 2)."""
        out: Tensor = self.conv(x)
        return out


class UpsampleBlock3d(nn.Module):
    """Doubles a grid along each axis: a convolution to 8 times the channels, then a shuffle.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        """See the class."""
        super().__init__()
        self.conv = nn.Conv3d(in_channels, 8 * out_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, out_channels, 2 X, 2 Y, 2 Z)."""
        return pixel_shuffle_3d(self.conv(x), 2)
