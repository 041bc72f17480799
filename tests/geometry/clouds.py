"""Small random clouds for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wcn_ckpt.geometry import Points, Voxels

LISTED = (30, 0, 25, 0)
"""Clouds with an empty one in the middle and one at the end."""


def random_cells(count: int, low: int = -4, high: int = 5, seed: int = 0) -> Tensor:
    """Return `count` different cells (count, 3) of the cube [low, high), in random order."""
    side = high - low
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randperm(side**3, generator=generator)[:count]
    cells = torch.stack([flat // side**2, flat // side % side, flat % side], dim=1)
    return (cells + low).int()


def make_voxels(
    sizes: Sequence[int] = LISTED,
    channels: int = 4,
    dtype: torch.dtype = torch.float64,
    low: int = -4,
    high: int = 5,
    seed: int = 0,
    **extra: Any,
) -> Voxels:
    """Return voxels with normally distributed features."""
    generator = torch.Generator().manual_seed(seed)
    cells = [random_cells(n, low, high, seed + b) for b, n in enumerate(sizes)]
    features = [torch.randn(n, channels, generator=generator, dtype=dtype) for n in sizes]
    return Voxels(cells, features, **extra)


def make_points(
    sizes: Sequence[int] = LISTED,
    channels: int = 4,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **extra: Any,
) -> Points:
    """Return points in the cube [-1, 1) with normally distributed features."""
    generator = torch.Generator().manual_seed(seed)
    positions = [2 * torch.rand(n, 3, generator=generator, dtype=dtype) - 1 for n in sizes]
    features = [torch.randn(n, channels, generator=generator, dtype=dtype) for n in sizes]
    return Points(positions, features, **extra)
