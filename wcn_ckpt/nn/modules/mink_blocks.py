"""Residual blocks of MinkUNet (Choy et al., "4D Spatio-Temporal ConvNets", CVPR 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from wcn_ckpt.checkpointing import GradientCheckpointingMixin
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.geometry.coordinates import positive_triple
from wcn_ckpt.nn.functional.sites import UNIT
from wcn_ckpt.nn.modules.activations import ReLU
from wcn_ckpt.nn.modules.base import G, SpatialModule
from wcn_ckpt.nn.modules.sequential import Sequential
from wcn_ckpt.nn.modules.sparse_conv import SparseConv3d, check_positive

Activation = nn.Module | Literal["relu"] | None


class ConvBlock(Sequential):
    """Convolution, batch normalization over all rows of the batch, activation.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: kernel size of the convolution.
        stride: stride of the convolution.
        activation: a module; `"relu"` for an in-place ReLU of its own; `None` for none.
        bias: whether the convolution has a bias.
        compute_dtype: dtype of the convolution's products.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        activation: Activation = "relu",
        bias: bool = False,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """See the class."""
        super().__init__(
            SparseConv3d(
                in_channels,
                out_channels,
                kernel_size,
                stride=stride,
                bias=bias,
                compute_dtype=compute_dtype,
            ),
            nn.BatchNorm1d(out_channels),
            _activation(activation),
        )


class ConvTrBlock(SpatialModule):
    """Transposed convolution onto given voxels, batch normalization, activation.

    The arguments are those of `ConvBlock`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        activation: Activation = "relu",
        bias: bool = False,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        """See the class."""
        super().__init__()
        self.conv_tr = SparseConv3d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            bias=bias,
            transposed=True,
            compute_dtype=compute_dtype,
        )
        self.norm_act = Sequential(nn.BatchNorm1d(out_channels), _activation(activation))

    def forward(self, x: Voxels, out_spatial_sparsity: Voxels) -> Voxels:
        """Return features at the voxels of `out_spatial_sparsity`.

        Args:
            x: coarse voxels.
            out_spatial_sparsity: finer voxels.
        """
        out: Voxels = self.norm_act(self.conv_tr(x, out_spatial_sparsity))
        return out


class BasicBlock(GradientCheckpointingMixin, SpatialModule):
    """Two 3 x 3 x 3 convolutions with a shortcut around them; a checkpoint boundary.

    `y = relu(conv2(conv1(x)) + shortcut(x))`, where the shortcut is `downsample` if stride or
    channels change and `x` itself otherwise. Every child may be replaced by a module that maps a
    geometry to a geometry.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        stride: input cells per output cell.
        bias: whether the convolutions have a bias.
        compute_dtype: dtype of the convolutions' products.
        use_checkpoint: whether the block starts with checkpointing enabled.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive.
    """

    expansion = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int | Sequence[int] = 1,
        bias: bool = False,
        compute_dtype: torch.dtype | None = None,
        use_checkpoint: bool = False,
    ) -> None:
        """See the class."""
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        self.conv1 = ConvBlock(
            in_channels, out_channels, 3, stride, bias=bias, compute_dtype=compute_dtype
        )
        self.conv2 = ConvBlock(
            out_channels, out_channels, 3, activation=None, bias=bias, compute_dtype=compute_dtype
        )
        self.downsample = _shortcut(in_channels, out_channels, stride, bias, compute_dtype)
        self.relu: nn.Module = ReLU(inplace=True)

    def forward(self, x: G) -> G:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: geometry with `in_channels` channels.
        """
        out: G = self._gradient_checkpointed_call(self._forward, x)
        return out

    def _forward(self, x: G) -> G:
        shortcut = x if self.downsample is None else self.downsample(x)
        out: G = self.relu(self.conv2(self.conv1(x)) + shortcut)
        return out


class BottleneckBlock(GradientCheckpointingMixin, SpatialModule):
    """A 3 x 3 x 3 convolution between two pointwise ones, with a shortcut; a checkpoint boundary.

    As `BasicBlock`, with `out_channels // 4` channels inside. `out_channels` is the width of the
    output; it is not multiplied by `expansion`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output, at least 4.
        stride: input cells per output cell, taken by the middle convolution.
        bias: whether the convolutions have a bias.
        compute_dtype: dtype of the convolutions' products.
        use_checkpoint: whether the block starts with checkpointing enabled.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or `out_channels` is below 4.
    """

    expansion = 4

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int | Sequence[int] = 1,
        bias: bool = False,
        compute_dtype: torch.dtype | None = None,
        use_checkpoint: bool = False,
    ) -> None:
        """See the class."""
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        check_positive(out_channels, "out_channels")
        inner = out_channels // self.expansion
        if inner == 0:
            raise ValueError(
                f"BottleneckBlock works in out_channels // {self.expansion} channels, so "
                f"out_channels must be at least {self.expansion}, got {out_channels}"
            )
        self.conv1 = ConvBlock(in_channels, inner, 1, bias=bias, compute_dtype=compute_dtype)
        self.conv2 = ConvBlock(inner, inner, 3, stride, bias=bias, compute_dtype=compute_dtype)
        self.conv3 = ConvBlock(
            inner, out_channels, 1, activation=None, bias=bias, compute_dtype=compute_dtype
        )
        self.downsample = _shortcut(in_channels, out_channels, stride, bias, compute_dtype)
        self.relu: nn.Module = ReLU(inplace=True)

    def forward(self, x: G) -> G:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: geometry with `in_channels` channels.
        """
        out: G = self._gradient_checkpointed_call(self._forward, x)
        return out

    def _forward(self, x: G) -> G:
        shortcut = x if self.downsample is None else self.downsample(x)
        out: G = self.relu(self.conv3(self.conv2(self.conv1(x))) + shortcut)
        return out


def _activation(activation: Activation) -> nn.Module:
    if activation is None:
        return nn.Identity()
    if isinstance(activation, nn.Module):
        return activation
    if activation != "relu":
        raise ValueError(f"activation must be a module, 'relu' or None, got {activation!r}")
    return ReLU(inplace=True)


def _shortcut(
    in_channels: int,
    out_channels: int,
    stride: int | Sequence[int],
    bias: bool,
    compute_dtype: torch.dtype | None,
) -> ConvBlock | None:
    """Return the pointwise block that a shortcut needs, or None where it is the identity."""
    if positive_triple(stride, "stride") == UNIT and in_channels == out_channels:
        return None
    return ConvBlock(
        in_channels,
        out_channels,
        1,
        stride,
        activation=None,
        bias=bias,
        compute_dtype=compute_dtype,
    )
