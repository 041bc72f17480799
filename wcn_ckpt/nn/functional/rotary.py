"""Rotary position encoding (Su et al., "RoFormer", 2021) on coordinates of any dimension."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotary_frequencies(
    head_dim: int, dim: int = 3, rope_freq: tuple[float, float] = (1.0, 10000.0)
) -> Tensor:
    """Return the angle per unit of coordinate of each rotated pair.

    Args:
        head_dim: channels of a head.
        dim: number of coordinates, which share the pairs evenly.
        rope_freq: the first frequency, and the base by whose powers the others fall.

    Returns:
        (F,) float64 with F = head_dim // 2 // dim: `rope_freq[0] / rope_freq[1] ** (j / F)`.

    Raises:
        ValueError: `head_dim` is odd, `dim` is below 1, or the frequencies are not positive.
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"rotation needs an even head_dim, at least 2, got {head_dim}")
    if dim < 1:
        raise ValueError(f"dim, the number of coordinates, must be at least 1, got {dim}")
    if len(rope_freq) != 2 or not all(0 < freq < math.inf for freq in rope_freq):
        raise ValueError(f"rope_freq must be two positive numbers, got {rope_freq!r}")
    count = head_dim // 2 // dim
    exponents = torch.arange(count, dtype=torch.float64, device="cpu") / max(count, 1)
    base = torch.tensor(rope_freq[1], dtype=torch.float64, device="cpu")
    return rope_freq[0] / base**exponents


def rotary_phases(coordinates: Tensor, frequencies: Tensor, num_pairs: int) -> Tensor:
    """Return the unit complex number that turns each pair of channels.

    Args:
        coordinates: (..., dim) of any real dtype.
        frequencies: (F,) angles per unit of coordinate.
        num_pairs: pairs of a head, at least dim * F; pairs beyond are not turned.

    Returns:
        (..., num_pairs) complex64: the F frequencies on the first coordinate, then on the second,
        and so on, then ones. Angles are computed in float64.
    """
    angles = coordinates.double().unsqueeze(-1) * frequencies.to(coordinates.device)
    angles = angles.flatten(-2)
    phases = torch.polar(torch.ones_like(angles), angles)
    rest = phases.new_ones(*phases.shape[:-1], num_pairs - phases.shape[-1])
    return torch.cat([phases, rest], dim=-1).to(torch.complex64)


def rotate(heads: Tensor, phases: Tensor) -> Tensor:
    """Multiply the pairs of channels (2h, 2h + 1) of every head by phases.

    Args:
        heads: (..., H, d) floating point.
        phases: complex, (..., d / 2) without the dimension of the heads; broadcast.

    Returns:
        As `heads`. Half precision is rotated in float32.
    """
    wide = heads if heads.dtype == torch.float64 else heads.float()
    halves = wide.reshape(*wide.shape[:-1], wide.shape[-1] // 2, 2)
    pairs = torch.view_as_complex(halves.contiguous())
    turned = torch.view_as_real(pairs * phases.unsqueeze(-2).to(pairs.dtype))
    return turned.flatten(-2).to(heads.dtype)
