"""Sparse 3D convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from wcn_ckpt.geometry import PointOrdering, Voxels
from wcn_ckpt.geometry.autocast import autocast_dtype
from wcn_ckpt.geometry.coordinates import positive_triple
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.nn.functional.convolution import grouped_matmul, sparse_conv
from wcn_ckpt.nn.functional.kernel_maps import KernelShape
from wcn_ckpt.nn.functional.pooling import sparse_pool
from wcn_ckpt.nn.functional.sites import UNIT, convolution_sites
from wcn_ckpt.nn.modules.base import SpatialModule


class StridedConvMode(Enum):
    """How a strided convolution gets to its coarser grid."""

    STRIDE_ONLY = "stride_only"
    REDUCE_AND_STRIDE = "reduce_and_stride"


STRIDED_CONV_MODE = StridedConvMode


class SparseConv3d(SpatialModule):
    """Convolution over the occupied cells of a grid.

    `out[q] = bias + sum over k of in[stride * q + offset_k] @ weight[k]`, where cells that do not
    exist add nothing. Offsets are numbered row by row, the last axis fastest; an odd kernel is
    centred, an even one looks forward only (offsets 0 to K - 1). At the sites that exist this is
    `torch.nn.functional.conv3d` on the dense grid. See
    `wcn_ckpt.nn.functional.sites.convolution_sites` for the output sites of every mode.

    The product is computed in `compute_dtype`, else in autocast's dtype, else in that of the
    features; half precision is summed in float32. The result stays in that dtype, and a bias of a
    wider dtype widens it. A 1 x 1 convolution with stride 1 is a matrix product on the rows: it
    ignores `out_sparsity` and `compute_dtype` and keeps the dtype of the product.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: one integer, or one per axis.
        stride: input cells per output cell.
        dilation: cells between neighbouring taps.
        bias: whether to add a bias.
        transposed: whether the input is the coarse side; forward then needs `out_sparsity`.
        generative: whether the output sites grow by the reach of the kernel.
        groups: number of independent groups of channels.
        stride_mode: `REDUCE_AND_STRIDE` max-pools by the stride first and then convolves with
            stride 1.
        fwd_algo: accepted for compatibility, without effect.
        dgrad_algo: accepted for compatibility, without effect.
        wgrad_algo: accepted for compatibility, without effect.
        kernel_matmul_batch_size: accepted for compatibility, without effect.
        order: a Morton order for the output rows of each cloud; `RANDOM` leaves them as they are.
        compute_dtype: dtype of the product.
        use_fp16_accum: accepted for compatibility, without effect.

    Attributes:
        weight: (K, C_in, C_out), or (K, G, C_in / G, C_out / G) with groups.
        bias: (C_out,) or None.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a size is not positive, channels are not divisible by groups, or a name is
            unknown.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        bias: bool = True,
        transposed: bool = False,
        generative: bool = False,
        groups: int = 1,
        stride_mode: StridedConvMode | str = StridedConvMode.STRIDE_ONLY,
        fwd_algo: Any = None,
        dgrad_algo: Any = None,
        wgrad_algo: Any = None,
        kernel_matmul_batch_size: int = 2,
        order: PointOrdering | str = PointOrdering.RANDOM,
        compute_dtype: torch.dtype | None = None,
        use_fp16_accum: bool | None = None,
    ) -> None:
        """See the class."""
        super().__init__()
        for name, value in (
            ("in_channels", in_channels),
            ("out_channels", out_channels),
            ("groups", groups),
        ):
            check_positive(value, name)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"in_channels={in_channels} and out_channels={out_channels} must be divisible by "
                f"groups={groups}"
            )
        _check_compute_dtype(compute_dtype)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = positive_triple(kernel_size, "kernel_size")
        self.stride = positive_triple(stride, "stride")
        self.dilation = positive_triple(dilation, "dilation")
        self.transposed = transposed
        self.generative = generative
        self.groups = groups
        self.stride_mode = _parse_mode(stride_mode)
        self.order = PointOrdering.parse(order)
        self.compute_dtype = compute_dtype
        per_group = (in_channels // groups, out_channels // groups)
        shape = per_group if groups == 1 else (groups, *per_group)
        self.weight = nn.Parameter(torch.empty(math.prod(self.kernel_size), *shape))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly, as `torch.nn.Conv3d` does.

        The bound is `1 / sqrt(fan)`, with the fan-in of the convolution; the weight of a
        transposed one uses the fan-out.
        """
        volume = math.prod(self.kernel_size)
        fan_in = self.in_channels // self.groups * volume
        fan_out = self.out_channels // self.groups * volume
        bound = 1 / math.sqrt(fan_out if self.transposed else fan_in)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def forward(self, x: Voxels, out_sparsity: Voxels | None = None) -> Voxels:
        """Convolve.

        Args:
            x: voxels with C_in floating point channels.
            out_sparsity: voxels to compute the output at; required when transposed, unless
                generative.

        Returns:
            Voxels with C_out channels.

        Raises:
            TypeError: an argument is not `Voxels`, or features are not floating point.
            ValueError: channels do not fit, voxels repeat, or `out_sparsity` does not suit the
                mode.
        """
        self._check_input(x, out_sparsity)
        if math.prod(self.kernel_size) == 1 and self.stride == UNIT:
            return self._pointwise(x)
        stride = self.stride
        if self.stride_mode is StridedConvMode.REDUCE_AND_STRIDE and not self.transposed:
            x, stride = _reduced(x, stride), UNIT
        out_coords, pairs = convolution_sites(
            x.batched_coordinates,
            KernelShape(self.kernel_size, stride, self.dilation),
            None if out_sparsity is None else out_sparsity.batched_coordinates,
            self.transposed,
            self.generative,
            self.order,
        )
        out = sparse_conv(self._compute_features(x), self.weight, pairs)
        if self.bias is not None:
            out = out + self.bias
        return x.replace(out_coords, CatFeatures.trusted(out, out_coords.offsets))

    def extra_repr(self) -> str:
        """Show sizes, and what is not the default."""
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        parts += [
            f"{name}={value}"
            for name, value, default in (
                ("stride", self.stride, UNIT),
                ("dilation", self.dilation, UNIT),
                ("groups", self.groups, 1),
                ("transposed", self.transposed, False),
                ("generative", self.generative, False),
                ("bias", self.bias is not None, True),
            )
            if value != default
        ]
        return ", ".join(parts)

    def _check_input(self, x: Voxels, out_sparsity: Voxels | None) -> None:
        for name, value in (("x", x), ("out_sparsity", out_sparsity)):
            if not isinstance(value, Voxels) and not (name == "out_sparsity" and value is None):
                raise TypeError(
                    f"{name} must be Voxels, got {type(value).__name__}; "
                    "points become voxels with Points.to_voxels(voxel_size)"
                )
        if x.num_channels != self.in_channels:
            raise ValueError(
                f"this convolution takes {self.in_channels} channels, got {x.num_channels}"
            )
        if not x.dtype.is_floating_point:
            raise TypeError(f"features must be floating point, got {x.dtype}; cast them first")

    def _compute_features(self, x: Voxels) -> Tensor:
        if self.compute_dtype is None:
            return x.feature_tensor
        return x.batched_features.tensor.to(self.compute_dtype)

    def _pointwise(self, x: Voxels) -> Voxels:
        features = x.feature_tensor
        # Autocast casts both sides of a product, but no float64.
        casts = autocast_dtype(features) is not None and self.weight.dtype != torch.float64
        if features.dtype != self.weight.dtype and not casts:
            raise TypeError(
                f"a 1 x 1 convolution multiplies features as they are, but they are "
                f"{features.dtype} and the weight is {self.weight.dtype}; cast one with "
                "x.to(dtype=...) or module.to(...)"
            )
        out = grouped_matmul(features, self.weight[0])
        return x.replace_features(out if self.bias is None else out.add_(self.bias))


def check_positive(value: int, name: str, allow_zero: bool = False) -> None:
    """Check a number of channels or the like.

    Raises:
        TypeError: it is no integer.
        ValueError: it is not positive, nor an allowed zero.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    least = 0 if allow_zero else 1
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_compute_dtype(dtype: torch.dtype | None) -> None:
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"compute_dtype must be a torch.dtype or None, got {dtype!r}")
    if not dtype.is_floating_point:
        raise ValueError(f"compute_dtype must be floating point or None, got {dtype}")


def _parse_mode(mode: StridedConvMode | str) -> StridedConvMode:
    try:
        return StridedConvMode(mode.lower() if isinstance(mode, str) else mode)
    except ValueError:
        names = [member.value for member in StridedConvMode]
        raise ValueError(f"stride_mode must be one of {names}, got {mode!r}") from None


def _reduced(x: Voxels, stride: tuple[int, int, int]) -> Voxels:
    return x if stride == UNIT else sparse_pool(x, stride, stride, "max")
