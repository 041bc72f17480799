"""Finds the row of a voxel by its cell."""

from __future__ import annotations

import torch
from torch import Tensor

from wcn_ckpt.geometry.cells import CellBox


class VoxelIndex:
    """Sorted keys of the voxels of a batch.

    The numbered box has one layer of cells more than the voxels on each side. No voxel is there,
    so a query outside the box is moved into that layer and finds nothing, and cannot be taken for
    a voxel of the next row, plane or cloud.
    """

    def __init__(self, cells: Tensor, clouds: Tensor, batch_size: int) -> None:
        """Sort the voxels.

        Args:
            cells: (N, 3) integers.
            clouds: (N,) int64 cloud of each voxel.
            batch_size: number of clouds.

        Raises:
            ValueError: two voxels of one cloud are the same cell, or the cells cannot be numbered.
        """
        self.box = CellBox.around(cells, batch_size, margin=1)
        self._keys, self._rows = self.box.encode(cells, clouds).sort()
        repeated = (self._keys[1:] == self._keys[:-1]).nonzero().flatten()
        if len(repeated):
            row = self._rows[repeated[0]]
            raise ValueError(
                f"{len(repeated)} of {len(cells)} voxels repeat another one; the first is cell "
                f"{cells[row].tolist()} of cloud {int(clouds[row])}. Merge them, for instance with "
                "points_to_voxels(...)"
            )

    def axis_keys(self, coordinates: Tensor, axis: int) -> Tensor:
        """Return what int64 coordinates along one axis, in the box or not, add to a key."""
        lower, extent = self.box.lower[axis], self.box.extent[axis]
        step = self.box.steps[1 + axis]
        return (coordinates - lower).clamp_(0, extent - 1).mul_(step)

    def cloud_keys(self, clouds: Tensor) -> Tensor:
        """Return what the cloud of a cell adds to its key."""
        return clouds * self.box.steps[0]

    def find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Look keys up.

        Args:
            keys: int64, any shape.

        Returns:
            The row of each key, and whether it was found (the row means nothing otherwise); both
            in the shape of `keys`.
        """
        if len(self._keys) == 0:
            return torch.zeros_like(keys), torch.zeros_like(keys, dtype=torch.bool)
        place = torch.searchsorted(self._keys, keys).clamp_(max=len(self._keys) - 1)
        return self._rows[place], self._keys[place] == keys
