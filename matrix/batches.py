"""Inputs of the subjects: what each rank gets as each microbatch."""

from __future__ import annotations

import hashlib

from matrix.inputs import terrain_voxels
from wcn_ckpt.geometry import Voxels


def terrain_batch(
    *, seed: int, rank: int, microbatch: int, channels: int, crop: int = 12, clouds: int = 2
) -> Voxels:
    """Return crops of the terrain that no other rank and no other microbatch gets.

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
    digest = hashlib.sha256(f"{seed}:{rank}:{microbatch}".encode()).digest()
    voxels = terrain_voxels(
        size=(crop, crop),
        clouds=clouds,
        channels=channels,
        seed=int.from_bytes(digest[:4], "big"),
    )
    return voxels.replace_features(voxels.feature_tensor.detach().requires_grad_())
