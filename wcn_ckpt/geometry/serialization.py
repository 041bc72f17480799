"""Orders of the rows of a batch along a space-filling curve, cloud by cloud.

Cells that are close on the curve are close in space, so runs of rows are compact pieces of a cloud
(Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from wcn_ckpt.geometry.base import Geometry
from wcn_ckpt.geometry.offsets import batch_indices
from wcn_ckpt.geometry.origins import Origin, check_origin, from_origin
from wcn_ckpt.geometry.space_filling import hilbert_codes, morton_codes


class PointOrdering(Enum):
    """An order of rows: at random, or along a curve with the axes taken in a given sequence.

    On a Morton curve the first axis named changes fastest. `HILBERT_TRANSPOSED` is the Hilbert
    curve with x and y exchanged. `WARPCONVNET_ORDERS` are those that WarpConvNet has.
    """

    RANDOM = 0
    MORTON_XYZ = 1
    MORTON_XZY = 2
    MORTON_YXZ = 3
    MORTON_YZX = 4
    MORTON_ZXY = 5
    MORTON_ZYX = 6
    HILBERT = 7
    HILBERT_TRANSPOSED = 8

    @property
    def axes(self) -> tuple[int, ...]:
        """Axis numbers in the sequence in which the curve takes them; empty for `RANDOM`."""
        if self is PointOrdering.RANDOM:
            return ()
        if self is PointOrdering.HILBERT:
            return 0, 1, 2
        if self is PointOrdering.HILBERT_TRANSPOSED:
            return 1, 0, 2
        return tuple(map("XYZ".index, self.name[-3:]))

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

    def codes(self, cells: Tensor) -> Tensor:
        """Return the (N,) int64 places of (N, 3) non-negative int64 cells along the curve.

        For `RANDOM` they are a permutation from torch's generator of the device of the cells.

        Raises:
            ValueError: a cell does not fit a code.
        """
        if self is PointOrdering.RANDOM:
            return torch.randperm(len(cells), device=cells.device)
        along = hilbert_codes if self.name.startswith("HILBERT") else morton_codes
        return along(cells, self.axes)


POINT_ORDERING = PointOrdering

WARPCONVNET_ORDERS = tuple(PointOrdering)[:7]


@dataclass(frozen=True, eq=False)
class Serialization:
    """A permutation of the rows of a batch, in which clouds keep their row ranges.

    Attributes:
        permutation: (N,) int64; `rows[permutation]` puts rows in order.
    """

    permutation: Tensor

    @property
    def inverse(self) -> Tensor:
        """(N,) int64; `ordered[inverse]` puts rows back."""
        return self.permutation.argsort()


def serialize(
    cells: Tensor,
    offsets: Tensor,
    order: PointOrdering | str = PointOrdering.MORTON_XYZ,
    origin: Origin = "cloud",
) -> Serialization:
    """Sort the rows of each cloud along a curve; clouds keep their row ranges.

    Args:
        cells: (N, 3) integers, or positions, which are put into cells of unit length.
        offsets: (B + 1,) first row of each cloud and N.
        order: the curve. `RANDOM` draws from torch's generator of the device of the cells.
        origin: where the curve starts.

    Raises:
        ValueError: the cells span more than 21 bits along an axis, or a name is unknown.
    """
    order = PointOrdering.parse(order)
    check_origin(origin)
    with torch.no_grad():
        clouds = batch_indices(offsets, cells.device)
        codes = order.codes(from_origin(cells, clouds, len(offsets) - 1, origin).to(torch.int64))
        along = codes.argsort(stable=True)
        return Serialization(along[clouds[along].argsort(stable=True)])


def resolve_order(
    x: Geometry, order: PointOrdering | Serialization | str
) -> PointOrdering | Serialization:
    """Return an order that gives the same permutation of `x` whenever it is asked.

    A block that may be run again resolves its order before the part that is: `RANDOM` becomes the
    permutation that was drawn.

    Args:
        x: N rows.
        order: a curve by member or name, or a permutation of the rows of `x`.

    Raises:
        TypeError: `x` is no geometry.
        ValueError: there is no such order, or a permutation does not have N rows.
    """
    if not isinstance(x, Geometry):
        raise TypeError(
            f"rows are ordered in a geometry (Points or Voxels), got {type(x).__name__}; give the "
            "rows coordinates first"
        )
    if not isinstance(order, Serialization):
        order = PointOrdering.parse(order)
        is_random = order is PointOrdering.RANDOM
        return serialize(x.coordinate_tensor, x.offsets, order) if is_random else order
    if len(order.permutation) != len(x):
        raise ValueError(
            f"the order is a permutation of {len(order.permutation)} rows, but the geometry has "
            f"{len(x)}; serialize its own coordinates"
        )
    return order
