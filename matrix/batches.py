"""Inputs of the subjects: what each rank gets as each microbatch.

All of them are crops of the terrain, and no two ranks or microbatches get the same ones. Batches
are uneven: some ranks hold more clouds than others, so that nothing may assume equal ones.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

import torch
from torch import Tensor

from matrix.inputs import terrain_points, terrain_voxels
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.geometry.combine import sparse_cat

SITES = ("even", "mixed", "scattered")
"""How voxels are spread over the clouds of a batch; see :func:`terrain_batch`."""

UNEVEN = 3
"""Ranks in turn hold no cloud, one, and two clouds more."""

SPREAD = 3
"""How many times as long as the others the sides of scattered crops are."""


def terrain_batch(
    *,
    seed: int,
    rank: int,
    microbatch: int,
    channels: int,
    crop: int = 12,
    clouds: int = 2,
    sites: str = "even",
) -> Voxels:
    """Return crops of the terrain as voxels.

    Args:
        seed: Seed of the run.
        rank: The rank that gets them.
        microbatch: Number of the microbatch on that rank.
        channels: Number of features, standardized; they require grad.
        crop: Height samples along each side of a crop.
        clouds: Number of crops on rank 0; see :func:`clouds_of`.
        sites: ``even`` for crops of one size; ``mixed`` for three clouds: a crop, one voxel alone,
            and a smaller crop; ``scattered`` for a few voxels out of larger crops, most of them
            without neighbours.

    Returns:
        With even sites about ``0.8 * clouds * crop**2`` voxels, with float32 features
        (N, channels).

    Raises:
        ValueError: There are no such sites.
    """
    clouds = clouds_of(rank, clouds)
    place = {"channels": channels, "seed": crop_seed(seed, rank, microbatch)}
    if sites == "even":
        voxels = terrain_voxels(size=(crop, crop), clouds=clouds, **place)
    elif sites == "mixed":
        sides = (crop, 1, (crop + 1) // 2)
        voxels = sparse_cat([terrain_voxels(size=(side, side), **place) for side in sides])
    elif sites == "scattered":
        side = SPREAD * crop
        voxels = _scattered(terrain_voxels(size=(side, side), clouds=clouds, **place))
    else:
        raise ValueError(f"sites must be one of {SITES}, got {sites!r}")
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
        clouds: Number of crops on rank 0; see :func:`clouds_of`.

    Returns:
        Float32 features (clouds * crop**2, channels) that require grad.
    """
    points = terrain_points(
        size=(crop, crop),
        clouds=clouds_of(rank, clouds),
        channels=channels,
        seed=crop_seed(seed, rank, microbatch),
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
    maps = rows.detach().reshape(-1, crop**2, channels).transpose(1, 2)
    return maps.contiguous().requires_grad_()


def clouds_of(rank: int, clouds: int) -> int:
    """Return how many clouds a rank holds where rank 0 holds ``clouds``."""
    return clouds + rank % UNEVEN


def crop_seed(seed: int, rank: int, microbatch: int) -> int:
    """Return the seed of what a rank gets as a microbatch."""
    digest = hashlib.sha256(f"{seed}:{rank}:{microbatch}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _scattered(voxels: Voxels) -> Voxels:
    """Return one in `SPREAD ** 2` voxels of each cloud."""
    generator = torch.Generator().manual_seed(len(voxels))
    coordinates, features = [], []
    for start, stop in pairwise(voxels.offsets.tolist()):
        kept = torch.randperm(stop - start, generator=generator)[:: SPREAD**2].sort().values
        coordinates.append(voxels.coordinate_tensor[start:stop][kept])
        features.append(voxels.feature_tensor[start:stop][kept])
    return Voxels(coordinates, features)
