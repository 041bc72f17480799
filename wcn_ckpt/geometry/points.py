"""Clouds of points at real positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from wcn_ckpt.geometry.base import Geometry
from wcn_ckpt.geometry.coordinates import RealCoords
from wcn_ckpt.geometry.reductions import Reduction
from wcn_ckpt.geometry.voxelize import downsample_points, points_to_voxels

if TYPE_CHECKING:
    from wcn_ckpt.geometry.voxels import Voxels


class Points(Geometry):
    """A batch of point clouds.

    Coordinates are floating point, finite, in the user's unit of length.

    Example:
        >>> cloud = torch.rand(100, 3)
        >>> points = Points([cloud, cloud + 1], [torch.rand(100, 8), torch.rand(100, 8)])
        >>> points.batch_size, len(points)
        (2, 200)
    """

    coordinates_type = RealCoords

    def to_voxels(
        self,
        voxel_size: float,
        reduction: Reduction = "mean",
        generator: torch.Generator | None = None,
    ) -> Voxels:
        """Merge the points of each grid cell; see `points_to_voxels`."""
        return points_to_voxels(self, voxel_size, reduction, generator=generator)

    def voxel_downsample(
        self,
        voxel_size: float,
        reduction: Reduction = "random",
        generator: torch.Generator | None = None,
    ) -> Points:
        """Keep one point of each grid cell; see `downsample_points`."""
        return downsample_points(self, voxel_size, reduction, generator)
