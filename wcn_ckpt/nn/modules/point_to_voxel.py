"""A module on voxels, run on points."""

from __future__ import annotations

from torch import nn

from wcn_ckpt.geometry import Points, points_to_voxels
from wcn_ckpt.geometry.reductions import Reduction, check_reduction
from wcn_ckpt.geometry.voxelize import check_voxel_size
from wcn_ckpt.nn.functional.unpooling import point_unpool
from wcn_ckpt.nn.modules.base import SpatialModule


class PointToVoxel(SpatialModule):
    """Voxelizes points, runs a module on the voxels, and gives each point its voxel's features.

    Args:
        inner_module: maps voxels to voxels with the same sites in the same rows.
        voxel_size: edge of a voxel in the unit of the points.
        reduction: how the features of a voxel's points become one row; not `"random"`.
        concat_unpooled_pc: whether the points keep their own features too, behind.

    Raises:
        TypeError: the voxel size is not a number.
        ValueError: the voxel size is not positive, or the reduction leaves points out.
    """

    def __init__(
        self,
        inner_module: nn.Module,
        voxel_size: float,
        reduction: Reduction = "mean",
        concat_unpooled_pc: bool = True,
    ) -> None:
        """See the class."""
        super().__init__()
        check_voxel_size(voxel_size)
        check_reduction(reduction)
        if reduction == "random":
            raise ValueError("reduction='random' leaves points out; use another such as 'mean'")
        self.inner_module = inner_module
        self.voxel_size = voxel_size
        self.reduction: Reduction = reduction
        self.concat_unpooled_pc = concat_unpooled_pc

    def forward(self, points: Points) -> Points:
        """Return the points with the channels of the inner module, and their own behind them.

        Voxels are handed to the inner module in Morton order.

        Raises:
            TypeError: the input is not `Points`.
            ValueError: the inner module does not keep the sites.
        """
        if not isinstance(points, Points):
            raise TypeError(f"PointToVoxel takes Points, got {type(points).__name__}")
        voxels, unique = points_to_voxels(
            points, self.voxel_size, self.reduction, "morton", return_to_unique=True
        )
        return point_unpool(self.inner_module(voxels), points, unique, self.concat_unpooled_pc)
