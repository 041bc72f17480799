"""Inputs of the subjects: what each rank gets as each microbatch.

All of them are crops of the terrain, and no two ranks or microbatches get the same ones.
"""

from __future__ import annotations

import hashlib

from torch import Tensor

from matrix.inputs import terrain_points, terrain_voxels
from wcn_ckpt.geometry import Voxels


def terrain_batch(
    *, seed: int, rank: int, microbatch: int, channels: int, crop: int = 12, clouds: int = 2
) -> Voxels:
    """Return crops of the terrain as voxels.

    Args:
        seed: Seed of the run.
        rank: The rank that gets them.
        microbatch: Number of the microbatch on that rank.
        channels: Number of features, standardized; they require grad.
        crop: Height samples along each side of a crop.
        clouds: Number of crops.

    Returns:
        About ``0.8 * clouds * crop**2`` voxels with float32 features (N, channels).
    """
    voxels = terrain_voxels(
        size=(crop, crop),
        clouds=clouds,
        channels=channels,
        seed=_crop_seed(seed, rank, microbatch),
    )
    return voxels.replace_features(voxels.feature_tensor.detach().requires_grad_())


def terrain_rows(
    *, seed: int, rank: int, microbatch: int, channels: int, crop: int = 6, clouds: int = 2
) -> Tensor:
    """Return the features of the height samples of some crops.

    Args:
        seed: Seed of the run.
        rank: The rank that gets them.
        microbatch: Number of the microbatch on that rank.
        channels: Number of features.
        crop: Height samples along each side of a crop.
        clouds: Number of crops.

    Returns:
        Float32 features (clouds * crop**2, channels) that require grad.
    """
    points = terrain_points(
        size=(crop, crop),
        clouds=clouds,
        channels=channels,
        seed=_crop_seed(seed, rank, microbatch),
    )
    return points.feature_tensor.detach().clone().requires_grad_()


def terrain_maps(
    *, seed: int, rank: int, microbatch: int, channels: int, crop: int = 6, clouds: int = 2
) -> Tensor:
    """Return the same features as :func:`terrain_rows`, as one map for each crop.

    Returns:
        Float32 features (clouds, channels, crop**2) that require grad.
    """
    rows = terrain_rows(
        seed=seed, rank=rank, microbatch=microbatch, channels=channels, crop=crop, clouds=clouds
    )
    maps = rows.detach().reshape(clouds, crop**2, channels).transpose(1, 2)
    return maps.contiguous().requires_grad_()


def _crop_seed(seed: int, rank: int, microbatch: int) -> int:
    digest = hashlib.sha256(f"{seed}:{rank}:{microbatch}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
