"""From voxels back to the points that they came from."""

from __future__ import annotations

import torch

from wcn_ckpt.geometry import Points, ToUnique, Voxels


def point_unpool(voxels: Voxels, points: Points, unique: ToUnique, concat: bool = True) -> Points:
    """Give each point the features of its voxel.

    Args:
        voxels: M voxels with C channels, in the rows that `points_to_voxels` gave them.
        points: the N points that were voxelized, with D channels.
        unique: the voxel of each point, as `points_to_voxels` returned it.
        concat: whether the points keep their own features too, behind.

    Returns:
        The points with C + D channels, or C.

    Raises:
        ValueError: the voxels or points are not those that were voxelized, by their number.
    """
    if (len(voxels), len(points)) != (unique.num_unique, len(unique.to_orig_indices)):
        raise ValueError(
            f"{len(unique.to_orig_indices)} points became {unique.num_unique} voxels, but got "
            f"{len(points)} points and {len(voxels)} voxels; what is in between must keep the sites"
        )
    unpooled = unique.to_original(voxels.feature_tensor)
    if concat:
        unpooled = torch.cat([unpooled, points.feature_tensor], dim=1)
    return points.replace_features(unpooled)
