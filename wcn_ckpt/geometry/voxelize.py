"""From points to voxels, and points thinned out by voxels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from wcn_ckpt.geometry.cells import unique_cells
from wcn_ckpt.geometry.coordinates import IntCoords, RealCoords
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.offsets import offsets_from_counts
from wcn_ckpt.geometry.reductions import (
    Reduction,
    check_reduction,
    first_extremum,
    random_member,
    segment_reduce,
)
from wcn_ckpt.geometry.serialization import PointOrdering, serialize
from wcn_ckpt.geometry.voxels import Voxels

if TYPE_CHECKING:
    from wcn_ckpt.geometry.points import Points

UniqueMethod = Literal["torch", "morton"]


@dataclass(frozen=True, eq=False)
class ToUnique:
    """Which voxel each point fell into.

    Attributes:
        to_orig_indices: (N,) int64 row of the voxel of each point.
        num_unique: number of voxels M.
    """

    to_orig_indices: Tensor
    num_unique: int

    def to_original(self, rows: Tensor) -> Tensor:
        """Give each point the row of its voxel: (M, C) to (N, C), differentiable."""
        return rows.index_select(0, self.to_orig_indices)


@overload
def points_to_voxels(
    points: Points,
    voxel_size: float,
    reduction: Reduction = ...,
    unique_method: UniqueMethod = ...,
    return_to_unique: Literal[False] = ...,
    generator: torch.Generator | None = ...,
) -> Voxels: ...


@overload
def points_to_voxels(
    points: Points,
    voxel_size: float,
    reduction: Reduction = ...,
    unique_method: UniqueMethod = ...,
    *,
    return_to_unique: Literal[True],
    generator: torch.Generator | None = ...,
) -> tuple[Voxels, ToUnique]: ...


def points_to_voxels(
    points: Points,
    voxel_size: float,
    reduction: Reduction = "random",
    unique_method: UniqueMethod = "torch",
    return_to_unique: bool = False,
    generator: torch.Generator | None = None,
) -> Voxels | tuple[Voxels, ToUnique]:
    """Merge the points of each grid cell into one voxel.

    The cell of a point is `floor(coordinate / voxel_size)`: absolute, so negative cells occur
    and no cloud is moved. Gradients flow through the features.

    Args:
        points: n points with C features.
        voxel_size: edge of a voxel in the unit of the coordinates.
        reduction: how the features of a cell become one row. `"random"` keeps one point of each
            cell: the first, or one drawn uniformly where a `generator` is given.
        unique_method: `"torch"` sorts voxels by (cloud, x, y, z), `"morton"` along the Morton
            curve inside each cloud. `"random"` keeps the order of the points instead.
        return_to_unique: whether the voxel of each point is wanted too.
        generator: source of the draws of `"random"`, on the device of the points.

    Returns:
        The voxels, int32, with the attribute `voxel_size`; and a `ToUnique` if wanted.

    Raises:
        TypeError: `points` are not `Points`, or `voxel_size` is no number.
        ValueError: `voxel_size` is not positive and finite, a name is unknown, `"random"` is
            combined with `return_to_unique`, or the cells are beyond the range of
            `Voxels`.
    """
    check_reduction(reduction)
    if unique_method not in ("torch", "morton"):
        raise ValueError(f"unique_method must be 'torch' or 'morton', got {unique_method!r}")
    if reduction == "random" and return_to_unique:
        raise ValueError(
            "reduction='random' leaves points out, so return_to_unique has no voxel for them; "
            "use another reduction such as 'mean'"
        )
    cells, counts, inverse = _occupied_cells(points, voxel_size)
    offsets = offsets_from_counts(counts, points.offsets.dtype)
    stored = points.batched_features.tensor
    if reduction == "random":
        kept = _representatives(inverse, len(cells), generator).sort().values
        cells, features = cells[inverse[kept]], stored.index_select(0, kept)
    else:
        if unique_method == "morton":
            order = serialize(cells, offsets, PointOrdering.MORTON_XYZ)
            cells, inverse = cells[order.permutation], order.inverse[inverse]
        features = segment_reduce(stored, inverse, len(cells), reduction)
    voxels = Voxels.from_parts(
        IntCoords.trusted(cells.to(torch.int32), offsets),
        CatFeatures.trusted(features, offsets),
        {"voxel_size": voxel_size},
    )
    return (voxels, ToUnique(inverse, len(cells))) if return_to_unique else voxels


def downsample_points(
    points: Points,
    voxel_size: float,
    reduction: Reduction = "random",
    generator: torch.Generator | None = None,
) -> Points:
    """Keep one point of each grid cell, at its own position.

    Args:
        points: n points with C features.
        voxel_size: edge of a cell in the unit of the coordinates.
        reduction: features of the kept point: its own (`"random"`), or those of all points of
            its cell, reduced.
        generator: draws the point of each cell uniformly; without, it is the first.

    Returns:
        Points in the order of the input, with its attributes.

    Raises:
        ValueError: as `points_to_voxels`.
    """
    check_reduction(reduction)
    cells, counts, inverse = _occupied_cells(points, voxel_size)
    kept = _representatives(inverse, len(cells), generator).sort().values
    stored = points.batched_features.tensor
    if reduction == "random":
        features = stored.index_select(0, kept)
    else:
        features = segment_reduce(stored, inverse, len(cells), reduction)[inverse[kept]]
    offsets = offsets_from_counts(counts, points.offsets.dtype)
    return points.replace(
        type(points.batched_coordinates).trusted(points.coordinate_tensor[kept], offsets),
        CatFeatures.trusted(features, offsets),
    )


def check_voxel_size(voxel_size: float) -> None:
    """Check the edge of a voxel.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not positive and finite.
    """
    if not isinstance(voxel_size, Real) or isinstance(voxel_size, bool):
        raise TypeError(f"voxel_size must be a number, got {voxel_size!r}")
    if not (math.isfinite(voxel_size) and voxel_size > 0):
        raise ValueError(f"voxel_size must be positive and finite, got {voxel_size}")


def _occupied_cells(points: Points, voxel_size: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return unique cells, cells per cloud, and the cell of each point."""
    if not isinstance(getattr(points, "batched_coordinates", None), RealCoords):
        raise TypeError(f"only Points can be voxelized, got {type(points).__name__}")
    check_voxel_size(voxel_size)
    with torch.no_grad():
        positions = points.coordinate_tensor
        if positions.dtype in (torch.float16, torch.bfloat16):
            positions = positions.float()
        cells = (positions / float(voxel_size)).floor()
        limit = torch.iinfo(torch.int32).max
        if len(cells) and not cells.abs().max() <= limit:
            raise ValueError(
                f"voxel_size {voxel_size} puts points beyond cell {limit} (coordinates reach "
                f"{positions.abs().max().item():.6g}); use larger voxels, or move the origin"
            )
        clouds = points.batched_coordinates.batch_indices
        return unique_cells(cells.to(torch.int64), clouds, points.batch_size)


def _representatives(inverse: Tensor, num_cells: int, generator: torch.Generator | None) -> Tensor:
    """Return one point of each cell: the first, or a drawn one."""
    if generator is not None:
        return random_member(inverse, num_cells, generator)
    return first_extremum(inverse.new_zeros(len(inverse), 1), inverse, num_cells).squeeze(1)
