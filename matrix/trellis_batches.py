"""Inputs of the TRELLIS.2 and DiT subjects: voxels or tokens, and what conditions them.

Voxels and tokens are crops of the terrain, as in `matrix.batches`; what conditions them is drawn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from matrix.batches import clouds_of, crop_seed, terrain_batch, terrain_maps
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.modules import RotaryPositionEmbedder

CONTEXT_LENGTH = 5


def voxels_and_children(*, channels: int, **place: Any) -> tuple[Voxels, Voxels]:
    """Return voxels, and which of their eight children exist: about half of them.

    Args:
        channels: Number of features.
        **place: Further arguments of :func:`matrix.batches.terrain_batch`.
    """
    voxels = terrain_batch(channels=channels, **place)
    scores = torch.randn(len(voxels), 8, generator=_generator(place))
    return voxels, voxels.replace_features(scores)


def voxels_to_decode(*, channels: int, **place: Any) -> tuple[Voxels, None, bool]:
    """Return the arguments of a decoder that is asked for its predictions too.

    Args:
        channels: Number of features.
        **place: Further arguments of :func:`matrix.batches.terrain_batch`.
    """
    return terrain_batch(channels=channels, **place), None, True


def dual_grid(**place: Any) -> tuple[Voxels, Voxels]:
    """Return vertices inside their cells, and flags of the edges that a surface crosses.

    Args:
        **place: Further arguments of :func:`matrix.batches.terrain_batch`.
    """
    voxels = terrain_batch(channels=3, **place)
    rows = voxels.feature_tensor.detach()
    vertices = voxels.replace_features(rows.sigmoid().requires_grad_())
    return vertices, voxels.replace_features(rows > 0)


def modulated_voxels(*, channels: int, context_channels: int = 0, **place: Any) -> tuple[Any, ...]:
    """Return voxels, the modulation of each cloud, and its context where channels are given.

    Args:
        channels: Number of features, and of channels of the modulation.
        context_channels: Number of channels of the context; 0 for none.
        **place: Further arguments of :func:`matrix.batches.terrain_batch`.
    """
    voxels = terrain_batch(channels=channels, **place)
    return (voxels, *_conditions(voxels.batch_size, channels, context_channels, place))


def modulated_tokens(
    *, channels: int, context_channels: int = 0, head_channels: int = 0, **place: Any
) -> tuple[Any, ...]:
    """Return dense tokens, their modulation, a context and rotary phases where they are wanted.

    Args:
        channels: Number of features, and of channels of the modulation.
        context_channels: Number of channels of the context; 0 for none.
        head_channels: Channels of a head, for phases; 0 for none.
        **place: Further arguments of :func:`matrix.batches.terrain_maps`.
    """
    maps = terrain_maps(channels=channels, **place)
    tokens = maps.detach().transpose(1, 2).contiguous().requires_grad_()
    batch_size, length = tokens.shape[:2]
    conditions = _conditions(batch_size, channels, context_channels, place)
    if not head_channels:
        return (tokens, *conditions)
    positions = torch.arange(length, device="cpu").unsqueeze(1).expand(length, 3)
    return (tokens, *conditions, RotaryPositionEmbedder(head_channels, 3)(positions))


def noisy_voxels(*, channels: int, context_channels: int, **place: Any) -> tuple[Any, ...]:
    """Return voxels, a time for each cloud, and its condition.

    Args:
        channels: Number of features.
        context_channels: Number of channels of the condition.
        **place: Further arguments of :func:`matrix.batches.terrain_batch`.
    """
    voxels = terrain_batch(channels=channels, **place)
    return (voxels, *_times(voxels.batch_size, context_channels, place))


def noisy_grid(
    *,
    seed: int,
    rank: int,
    microbatch: int,
    channels: int,
    context_channels: int,
    resolution: int,
) -> tuple[Any, ...]:
    """Return dense grids, a time for each of them, and its condition.

    Args:
        seed: Seed of the run.
        rank: The rank that gets them.
        microbatch: Number of the microbatch on that rank.
        channels: Number of features.
        context_channels: Number of channels of the condition.
        resolution: Cells along each axis.
    """
    place = {"seed": seed, "rank": rank, "microbatch": microbatch}
    count = clouds_of(rank, 2)
    shape = (count, channels, resolution, resolution, resolution)
    grid = torch.randn(shape, generator=_generator(place)).requires_grad_()
    return (grid, *_times(count, context_channels, place))


def _conditions(
    batch_size: int, channels: int, context_channels: int, place: dict[str, Any]
) -> tuple[Tensor, ...]:
    generator = _generator(place)
    shapes: list[tuple[int, ...]] = [(batch_size, channels)]
    if context_channels:
        shapes.append((batch_size, CONTEXT_LENGTH, context_channels))
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)


def _times(batch_size: int, context_channels: int, place: dict[str, Any]) -> tuple[Tensor, Tensor]:
    generator = _generator(place)
    times = torch.rand(batch_size, generator=generator)
    shape = (batch_size, CONTEXT_LENGTH, context_channels)
    return times, torch.randn(shape, generator=generator).requires_grad_()


def _generator(place: dict[str, Any]) -> torch.Generator:
    seed = crop_seed(place["seed"], place["rank"], place["microbatch"])
    return torch.Generator().manual_seed(seed)
