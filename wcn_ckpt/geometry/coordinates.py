"""Coordinates of a batch of clouds: real positions, or integer cells of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wcn_ckpt.geometry.batched import BatchedTensor
from wcn_ckpt.geometry.cache import TableCache
from wcn_ckpt.geometry.cells import CellBox
from wcn_ckpt.geometry.offsets import batch_indices
from wcn_ckpt.geometry.voxel_index import VoxelIndex

if TYPE_CHECKING:
    from typing_extensions import Self

NUM_SPATIAL_DIMS = 3

Triple = tuple[int, int, int]


class BatchedCoordinates(BatchedTensor):
    """Coordinates (N, 3), cloud after cloud, with the tables derived from them.

    Attributes:
        cache: tables that ops derive from these coordinates. Copies and pickles start without.
    """

    cache: TableCache

    @property
    def batch_indices(self) -> Tensor:
        """The cloud of each row, (N,) int64 on the device of the rows."""
        return self.cache.get(
            "batch_indices", lambda: batch_indices(self.offsets, self.tensor.device)
        )

    @property
    def batch_indexed(self) -> Tensor:
        """(N, 4) rows `(cloud, x, y, z)` in the dtype of the coordinates."""

        def build() -> Tensor:
            clouds = self.batch_indices.to(self.dtype)
            return torch.cat([clouds.unsqueeze(1), self.tensor], dim=1)

        return self.cache.get("batch_indexed", build)

    def _assign(self, tensor: Tensor, offsets: Tensor) -> None:
        super()._assign(tensor, offsets)
        self.cache = TableCache(tensor)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the tables."""
        return {name: value for name, value in self.__dict__.items() if name != "cache"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start with no tables."""
        self.__dict__.update(state)
        self.cache = TableCache(self.tensor)

    def _check_rows(self, rows: Tensor) -> None:
        if rows.ndim != 2 or rows.shape[1] != NUM_SPATIAL_DIMS:
            raise ValueError(
                f"coordinates must have shape (N, {NUM_SPATIAL_DIMS}), got {tuple(rows.shape)}; "
                "the batch index is not a column of them (see Voxels.from_feats_coords)"
            )


class RealCoords(BatchedCoordinates):
    """Positions of points: (N, 3) floating point, in the user's unit of length, all finite."""

    def _check_rows(self, rows: Tensor) -> None:
        super()._check_rows(rows)
        if not rows.is_floating_point():
            raise TypeError(
                f"point coordinates must be floating point, got {rows.dtype}; cast them"
            )
        finite = rows.isfinite().all(dim=1)
        if not finite.all():
            bad = (~finite).nonzero().flatten()
            raise ValueError(
                f"{len(bad)} of {len(rows)} points have a NaN or infinite coordinate, the first in "
                f"row {int(bad[0])}: {rows[bad[0]].tolist()}; drop them first"
            )

    def _empty_rows(self) -> Tensor:
        return torch.empty(0, NUM_SPATIAL_DIMS)


class IntCoords(BatchedCoordinates):
    """Cells of a grid: (N, 3) int32 or int64, in units of one cell at the current stride.

    Attributes:
        tensor_stride: edge of a cell in cells of the finest grid, one number per axis; `None`
            where nobody said, which ops read as 1.
    """

    tensor_stride: Triple | None

    def __init__(
        self,
        tensor: Tensor | Sequence[Tensor],
        offsets: Tensor | Sequence[int] | None = None,
        device: torch.device | str | None = None,
        tensor_stride: int | Sequence[int] | None = None,
    ) -> None:
        """Check the cells; the arguments are those of `BatchedTensor` and the stride.

        Raises:
            TypeError: the cells are not int32 or int64, or the stride is no integer.
            ValueError: a cell is outside the int32 range, the bounding boxes of the batch have
                more cells than an int64 key can number, or the stride is not positive.
        """
        super().__init__(tensor, offsets, device)
        CellBox.around(self.tensor, self.batch_size)
        self.tensor_stride = (
            None if tensor_stride is None else positive_triple(tensor_stride, "tensor_stride")
        )

    @property
    def index(self) -> VoxelIndex:
        """The table that finds the row of a cell.

        Raises:
            ValueError: two rows of one cloud are the same cell.
        """
        return self.cache.get(
            "index", lambda: VoxelIndex(self.tensor, self.batch_indices, self.batch_size)
        )

    def with_stride(self, tensor_stride: Triple | None) -> IntCoords:
        """Return the same cells, and the same tables, under another tensor stride."""
        if tensor_stride == self.tensor_stride:
            return self
        other = self.with_rows(self.tensor, self.offsets)
        other.tensor_stride, other.cache = tensor_stride, self.cache
        return other

    def _assign(self, tensor: Tensor, offsets: Tensor) -> None:
        super()._assign(tensor, offsets)
        self.tensor_stride = None

    def with_rows(self, tensor: Tensor, offsets: Tensor) -> Self:
        """Return other cells and offsets under the same stride, without checks."""
        other = super().with_rows(tensor, offsets)
        other.tensor_stride = self.tensor_stride
        return other

    def _check_rows(self, rows: Tensor) -> None:
        super()._check_rows(rows)
        if rows.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"voxel coordinates must be int32 or int64, got {rows.dtype}; "
                "points become voxels with Points.to_voxels(voxel_size)"
            )

    def _empty_rows(self) -> Tensor:
        return torch.empty(0, NUM_SPATIAL_DIMS, dtype=torch.int32)


def positive_triple(value: int | Sequence[int], name: str) -> Triple:
    """Return one positive integer per axis from one integer or three.

    Raises:
        TypeError: the value is not an integer or a sequence of integers.
        ValueError: there are not three of them, or one is not positive.
    """
    entries = tuple(value) if isinstance(value, Sequence) else (value,) * NUM_SPATIAL_DIMS
    if not all(isinstance(entry, Integral) and not isinstance(entry, bool) for entry in entries):
        raise TypeError(f"{name} must be an integer or three of them, got {value!r}")
    if len(entries) != NUM_SPATIAL_DIMS or min(entries) < 1:
        raise ValueError(f"{name} must be one positive integer or three, got {value!r}")
    x, y, z = (int(entry) for entry in entries)
    return x, y, z
