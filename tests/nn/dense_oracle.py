"""Sparse convolution computed densely by torch, and read off at chosen voxels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.modules import SparseConv3d


def dense_convolution(conv: SparseConv3d, x: Voxels, rows: Tensor, sites: Voxels) -> Tensor:
    """Return (M, C_out): `torch.nn.functional.conv3d` of features `rows` at the given sites.

    Args:
        conv: the layer whose weight and settings are used.
        x: input voxels.
        rows: (N, C_in) features of the input voxels.
        sites: M output voxels.
    """
    low, high = _box(x, sites, conv)
    stride = torch.tensor(conv.stride)
    grid = _fill(x, rows, low * stride, high * stride)
    before = _centre(conv)
    after = [
        d * (k - 1) - b for k, d, b in zip(conv.kernel_size, conv.dilation, before, strict=True)
    ]
    padding = [n for axis in (2, 1, 0) for n in (before[axis], after[axis])]
    weight = _weight(conv).permute(3, 5, 4, 0, 1, 2).flatten(0, 1)
    out = F.conv3d(
        F.pad(grid, padding), weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups
    )
    return _read(out, sites, low)


def dense_transposed(conv: SparseConv3d, x: Voxels, rows: Tensor, sites: Voxels) -> Tensor:
    """Return (M, C_out): `torch.nn.functional.conv_transpose3d` at the given finer sites."""
    low, high = _box(sites, x, conv)
    grid = _fill(x, rows, low, high)
    weight = _weight(conv).permute(3, 4, 5, 0, 1, 2).flatten(0, 1)
    out = F.conv_transpose3d(grid, weight, conv.bias, conv.stride, 0, 0, conv.groups, conv.dilation)
    return _read(out, sites, low * torch.tensor(conv.stride) - torch.tensor(_centre(conv)))


def _box(fine: Voxels, coarse: Voxels, conv: SparseConv3d) -> tuple[Tensor, Tensor]:
    """Return coarse corners [low, high) that hold both sides and the reach of the kernel."""
    stride = torch.tensor(conv.stride)
    reach = torch.tensor(conv.kernel_size) * torch.tensor(conv.dilation)
    cells = torch.cat([fine.coordinate_tensor, coarse.coordinate_tensor * stride])
    low = (cells.amin(0) - reach).div(stride, rounding_mode="floor")
    high = (cells.amax(0) + reach).div(stride, rounding_mode="floor") + 2
    return low, high


def _centre(conv: SparseConv3d) -> list[int]:
    """Return how far the kernel reaches back along each axis."""
    axes = zip(conv.kernel_size, conv.dilation, strict=True)
    return [d * (k // 2) if k % 2 else 0 for k, d in axes]


def _fill(x: Voxels, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    cloud, *axes = x.coords.long().unbind(1)
    places = [axis - int(start) for axis, start in zip(axes, low, strict=True)]
    grid = rows.new_zeros(x.batch_size, *(high - low).tolist(), rows.shape[1])
    return grid.index_put((cloud, *places), rows).movedim(-1, 1)


def _read(grid: Tensor, sites: Voxels, low: Tensor) -> Tensor:
    cloud, *axes = sites.coords.long().unbind(1)
    places = [axis - int(start) for axis, start in zip(axes, low, strict=True)]
    where = (cloud, *places)
    return grid.movedim(1, -1)[where]


def _weight(conv: SparseConv3d) -> Tensor:
    """Return the weight as (K1, K2, K3, G, C_in / G, C_out / G)."""
    shape = (conv.in_channels // conv.groups, conv.out_channels // conv.groups)
    return conv.weight.reshape(*conv.kernel_size, conv.groups, *shape)
