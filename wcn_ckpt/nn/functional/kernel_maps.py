"""Kernel maps: which input voxel meets which output voxel under which kernel offset.

An input row p and an output row q are paired under offset k iff they are in the same cloud and
``input[p] = stride * output[q] + offset[k]``. For one k, a row of either side is in at most one
pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wcn_ckpt.geometry.coordinates import IntCoords, Triple
from wcn_ckpt.geometry.voxel_index import VoxelIndex

# Kernel offsets are looked up together, as many as keep one table of queries under 32 MiB.
QUERIES_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class KernelShape:
    """Geometry of a convolution kernel.

    Attributes:
        size: Kernel size K per axis. An odd kernel is centred, an even one looks forward only.
        stride: Input cells per output cell, per axis.
        dilation: Cells between neighbouring taps, per axis.
    """

    size: Triple
    stride: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)

    @property
    def volume(self) -> int:
        """Number of kernel offsets, K1 * K2 * K3."""
        return math.prod(self.size)

    @property
    def is_symmetric(self) -> bool:
        """Whether every offset has its opposite in the kernel, and input and output share cells."""
        return self.stride == (1, 1, 1) and all(n % 2 for n in self.size)

    def axis_offsets(self, axis: int) -> list[int]:
        """Returns the offsets along one axis in ascending order."""
        n = self.size[axis]
        first = -(n // 2) if n % 2 else 0
        return [self.dilation[axis] * (first + i) for i in range(n)]

    def offsets(self, device: torch.device) -> Tensor:
        """Returns all offsets, (K, 3) int64, the last axis fastest."""
        axes = [torch.tensor(self.axis_offsets(axis), device=device) for axis in range(3)]
        return torch.cartesian_prod(*axes)


@dataclass(frozen=True)
class MapLayout:
    """What a kernel map is besides its index tensors.

    Attributes:
        counts: number of listed pairs of each kernel offset.
        num_in: number of input rows.
        num_out: number of output rows.
        identity: the offset that pairs every row with itself, where there is one; its pairs are
            not listed.
    """

    counts: tuple[int, ...]
    num_in: int
    num_out: int
    identity: int | None = None

    def transposed(self) -> MapLayout:
        """Return the layout with input and output exchanged."""
        return replace(self, num_in=self.num_out, num_out=self.num_in)


@dataclass(frozen=True, eq=False)
class KernelMap:
    """All pairs of a convolution, offset after offset.

    Attributes:
        in_rows: (M,) int64 input row of each listed pair.
        out_rows: (M,) int64 output row of each listed pair.
        layout: which of them belong to which offset.
    """

    in_rows: Tensor
    out_rows: Tensor
    layout: MapLayout

    def transposed(self) -> KernelMap:
        """Return the map with input and output exchanged."""
        return KernelMap(self.out_rows, self.in_rows, self.layout.transposed())

    def pairs(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield `(offset, input rows, output rows)` for each offset that has listed pairs."""
        start = 0
        for offset, count in enumerate(self.layout.counts):
            if count:
                rows = slice(start, start + count)
                yield offset, self.in_rows[rows], self.out_rows[rows]
            start += count

    def all_pairs(self) -> tuple[Tensor, Tensor]:
        """Return input and output rows of every pair, those of the identity offset included."""
        if self.layout.identity is None:
            return self.in_rows, self.out_rows
        every = torch.arange(self.layout.num_in, device=self.in_rows.device)
        return torch.cat([self.in_rows, every]), torch.cat([self.out_rows, every])


def kernel_map(fine: IntCoords, coarse: IntCoords, kernel: KernelShape) -> KernelMap:
    """Returns the map from ``fine`` (input) to ``coarse`` (output); cached on ``fine``.

    A convolution that goes the other way uses the transposed map.

    Raises:
        ValueError: Voxels of either side repeat.
    """

    def build() -> KernelMap:
        _ = coarse.index  # finds repeated voxels
        if fine.tensor is coarse.tensor and kernel.is_symmetric:
            return _build_symmetric(fine, kernel)
        return _build(fine, coarse, kernel)

    return fine.cache.get_paired(coarse.cache, kernel, build)


def _build(fine: IntCoords, coarse: IntCoords, kernel: KernelShape) -> KernelMap:
    keys = _QueryKeys(fine.index, coarse, kernel)
    in_rows, out_rows, counts = _search(fine.index, keys, range(kernel.volume))
    return KernelMap(in_rows, out_rows, MapLayout(tuple(counts), len(fine), len(coarse)))


def _build_symmetric(cells: IntCoords, kernel: KernelShape) -> KernelMap:
    """Looks up half of the offsets: the pairs of an offset, exchanged, are its opposite's."""
    centre = kernel.volume // 2
    keys = _QueryKeys(cells.index, cells, kernel)
    in_rows, out_rows, counts = _search(cells.index, keys, range(centre))
    layout = MapLayout((*counts, 0, *reversed(counts)), len(cells), len(cells), identity=centre)
    return KernelMap(
        torch.cat([in_rows, out_rows.flip(0)]), torch.cat([out_rows, in_rows.flip(0)]), layout
    )


class _QueryKeys:
    """Keys of ``stride * output + offset``, put together from one table per axis."""

    def __init__(self, index: VoxelIndex, coarse: IntCoords, kernel: KernelShape) -> None:
        self.num_queries = len(coarse)
        self._size = kernel.size
        self._clouds = index.cloud_keys(coarse.batch_indices)
        self._axes = []
        for axis in range(3):
            offsets = torch.tensor(kernel.axis_offsets(axis), device=coarse.device)
            origin = coarse.tensor[:, axis].to(torch.int64) * kernel.stride[axis]
            self._axes.append(index.axis_keys(origin + offsets.unsqueeze(1), axis))

    def of(self, offsets: range) -> Tensor:
        """Returns (len(offsets), N_out) keys."""
        along_x, along_y, along_z = self._axes
        flat = torch.arange(offsets.start, offsets.stop, device=self._clouds.device)
        i, j, k = torch.unravel_index(flat, self._size)
        return along_x[i].add_(along_y[j]).add_(along_z[k]).add_(self._clouds)


def _search(
    index: VoxelIndex, keys: _QueryKeys, offsets: range
) -> tuple[Tensor, Tensor, list[int]]:
    """Returns input rows, output rows and counts of the pairs of a range of offsets."""
    at_once = max(1, QUERIES_AT_ONCE // max(1, keys.num_queries))
    in_rows, out_rows, counts = [], [], []
    for start in range(offsets.start, offsets.stop, at_once):
        rows, found = index.find(keys.of(range(start, min(start + at_once, offsets.stop))))
        in_rows.append(rows[found])
        out_rows.append(found.nonzero()[:, 1])
        counts.append(found.sum(dim=1))
    if not counts:
        nothing = torch.empty(0, dtype=torch.int64, device=keys._clouds.device)
        return nothing, nothing, []
    return torch.cat(in_rows), torch.cat(out_rows), torch.cat(counts).tolist()
