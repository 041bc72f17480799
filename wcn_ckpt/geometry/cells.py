"""One int64 number per cell of a batch of grids.

Cells are numbered row by row, `((cloud * X + x) * Y + y) * Z + z`, inside a box that holds every
cell of the batch. Sorting the numbers therefore sorts the cells by `(cloud, x, y, z)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

INT32 = torch.iinfo(torch.int32)
MAX_KEY = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class CellBox:
    """A box of cells, the same for each cloud of a batch.

    Attributes:
        lower: the least coordinate in the box, per axis.
        extent: number of cells along each axis.
        batch_size: number of clouds.
    """

    lower: tuple[int, int, int]
    extent: tuple[int, int, int]
    batch_size: int

    def __post_init__(self) -> None:
        """Check that every cell gets a key of its own."""
        if self.batch_size * math.prod(self.extent) > MAX_KEY:
            upper = [low + n - 1 for low, n in zip(self.lower, self.extent, strict=True)]
            raise ValueError(
                f"coordinates from {list(self.lower)} to {upper} in {self.batch_size} clouds span "
                f"more cells than an int64 key can number ({MAX_KEY}); use larger voxels, or move "
                "far outliers"
            )

    @classmethod
    def around(cls, cells: Tensor, batch_size: int, margin: int = 0) -> CellBox:
        """Return the least box that holds every cell, and `margin` more cells on each side.

        Args:
            cells: (N, 3) integers.
            batch_size: number of clouds.
            margin: cells to add on each side of each axis.

        Raises:
            ValueError: a cell is outside the int32 range, or the box has too many cells.
        """
        if len(cells) == 0:
            return cls((-margin,) * 3, (2 * margin,) * 3, batch_size)
        least, greatest = torch.stack(cells.aminmax(dim=0)).tolist()
        if min(least) < INT32.min or max(greatest) > INT32.max:
            raise ValueError(
                f"voxel coordinates must lie in [{INT32.min}, {INT32.max}], got coordinates from "
                f"{least} to {greatest}; use larger voxels, or move the origin"
            )
        x, y, z = (low - margin for low in least)
        nx, ny, nz = (
            high - low + 1 + 2 * margin for low, high in zip(least, greatest, strict=True)
        )
        return cls((x, y, z), (nx, ny, nz), batch_size)

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """How far apart the keys of neighbours are, for the cloud and each axis."""
        x, y, z = self.extent
        return x * y * z, y * z, z, 1

    def encode(self, cells: Tensor, clouds: Tensor) -> Tensor:
        """Return the (N,) int64 keys of (N, 3) cells inside the box."""
        per_cloud, *per_axis = self.steps
        keys = clouds * per_cloud
        for axis, step in enumerate(per_axis):
            keys = keys + (cells[:, axis].to(torch.int64) - self.lower[axis]) * step
        return keys

    def decode(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (N, 3) int64 cells and (N,) clouds of keys."""
        columns = []
        for step in self.steps:
            columns.append(keys // step)
            keys = keys % step
        clouds, *axes = columns
        return torch.stack(axes, dim=1) + keys.new_tensor(self.lower), clouds


def unique_cells(cells: Tensor, clouds: Tensor, batch_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return each cell once, sorted by `(cloud, x, y, z)`.

    Args:
        cells: (N, 3) integers.
        clouds: (N,) int64 cloud of each row.
        batch_size: number of clouds.

    Returns:
        The (M, 3) int64 cells, how many of them each cloud has (B,), and for each of the N rows
        its cell among the M.

    Raises:
        ValueError: as `CellBox.around`.
    """
    box = CellBox.around(cells, batch_size)
    if len(cells) == 0:
        return cells.to(torch.int64), clouds.new_zeros(batch_size), clouds
    keys, inverse = torch.unique(box.encode(cells, clouds), return_inverse=True)
    unique, owners = box.decode(keys)
    return unique, owners.bincount(minlength=batch_size), inverse
