"""Orders of the cells of a grid along a space-filling curve, cloud by cloud.

A Morton code interleaves the bits of a cell's coordinates, so cells that are close on the curve
are close in space (G. M. Morton, "A computer oriented geodetic data base", 1966).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import torch
from torch import Tensor

from wcn_ckpt.geometry.offsets import batch_indices

BITS_PER_AXIS = 21

Origin = Literal["cloud", "batch"]


class PointOrdering(Enum):
    """An order of rows: at random, or by Morton code with the axes taken in a given sequence.

    The first axis named changes fastest along the curve.
    """

    RANDOM = 0
    MORTON_XYZ = 1
    MORTON_XZY = 2
    MORTON_YXZ = 3
    MORTON_YZX = 4
    MORTON_ZXY = 5
    MORTON_ZYX = 6

    @property
    def axes(self) -> tuple[int, ...]:
        """Axis numbers from the least significant on; empty for the random order."""
        return () if self is PointOrdering.RANDOM else tuple(map("XYZ".index, self.name[-3:]))

    @classmethod
    def parse(cls, order: PointOrdering | str) -> PointOrdering:
        """Return an order by member or by name in any case; `"morton"` means XYZ.

        Raises:
            ValueError: there is no such order.
        """
        if isinstance(order, cls):
            return order
        name = str(order).upper()
        name = "MORTON_XYZ" if name == "MORTON" else name
        if name not in cls.__members__:
            raise ValueError(f"order must be one of {list(cls.__members__)}, got {order!r}")
        return cls[name]


POINT_ORDERING = PointOrdering


@dataclass(frozen=True, eq=False)
class Serialization:
    """A permutation of rows and its inverse, both (N,) int64.

    Attributes:
        permutation: `rows[permutation]` puts rows in order.
        inverse: `ordered[inverse]` puts them back.
    """

    permutation: Tensor
    inverse: Tensor


def serialize(
    cells: Tensor,
    offsets: Tensor,
    order: PointOrdering | str = PointOrdering.MORTON_XYZ,
    origin: Origin = "cloud",
) -> Serialization:
    """Sort the rows of each cloud along a curve; clouds keep their row ranges.

    Args:
        cells: (N, 3) integers.
        offsets: (B + 1,) first row of each cloud and N.
        order: the curve. `RANDOM` draws from torch's generator of the device of the cells.
        origin: where the curve starts: at the least corner of each cloud, so that an order does
            not depend on the other clouds, or at that of the whole batch.

    Raises:
        ValueError: the cells span more than 21 bits along an axis, or a name is unknown.
    """
    order = PointOrdering.parse(order)
    if origin not in ("cloud", "batch"):
        raise ValueError(f"origin must be 'cloud' or 'batch', got {origin!r}")
    with torch.no_grad():
        clouds = batch_indices(offsets, cells.device)
        if order is PointOrdering.RANDOM:
            codes = torch.randperm(len(cells), device=cells.device)
        else:
            codes = _morton_codes(_from_origin(cells, clouds, len(offsets) - 1, origin), order)
        along = codes.argsort(stable=True)
        permutation = along[clouds[along].argsort(stable=True)]
        return Serialization(permutation, permutation.argsort())


def _from_origin(cells: Tensor, clouds: Tensor, batch_size: int, origin: Origin) -> Tensor:
    """Return non-negative cells relative to the least corner."""
    cells = cells.to(torch.int64)
    if len(cells) == 0:
        return cells
    if origin == "batch":
        shifted = cells - cells.amin(dim=0)
    else:
        index = clouds.unsqueeze(1).expand_as(cells)
        corners = cells.new_zeros(batch_size, 3)
        corners.scatter_reduce_(0, index, cells, "amin", include_self=False)
        shifted = cells - corners[clouds]
    if int(shifted.max()) >> BITS_PER_AXIS:
        raise ValueError(
            f"a Morton code has {BITS_PER_AXIS} bits per axis, but cells span "
            f"{int(shifted.max()) + 1}; use larger voxels"
        )
    return shifted


def _morton_codes(cells: Tensor, order: PointOrdering) -> Tensor:
    codes = cells.new_zeros(len(cells))
    for place, axis in enumerate(order.axes):
        for bit in range(BITS_PER_AXIS):
            codes |= (cells[:, axis] >> bit & 1) << (3 * bit + place)
    return codes
