"""Rotary position embedding of queries and keys by their cells.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, with a third of
the rotated channels for each axis.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_frequencies(head_channels: int, base: float, device: torch.device) -> Tensor:
    """Return the (T,) float32 frequencies `base ** (-j / T)`, T = head_channels // 6."""
    count = head_channels // 6
    steps = torch.arange(count, device=device, dtype=torch.float64)
    return (base ** (-steps / max(count, 1))).float()


def voxel_rope(rows: Tensor, coordinates: Tensor, base: float) -> Tensor:
    """Rotate pairs of channels by angles that grow with the coordinates.

    Channels `2 h` and `2 h + 1` are a pair. With T = d // 6, pairs 0 to T - 1 turn with x, T to
    2 T - 1 with y and 2 T to 3 T - 1 with z, by `(coordinate + 1) * base ** (-(h mod T) / T)`. The
    other d - 6 T channels pass. Computed in float32 at least.

    Args:
        rows: (N, ..., d) queries or keys.
        coordinates: (N, 3) relative to an origin.
        base: ratio of the greatest and the least wavelength.

    Returns:
        Rotated rows, in their dtype.
    """
    frequencies = rope_frequencies(rows.shape[-1], base, rows.device)
    turned = 6 * len(frequencies)
    if turned == 0:
        return rows
    dtype = torch.promote_types(rows.dtype, torch.float32)
    angles = ((coordinates.to(dtype) + 1).unsqueeze(2) * frequencies.to(dtype)).flatten(1)
    shape = (len(rows), *(1,) * (rows.ndim - 2), turned // 2)
    cos, sin = angles.cos().view(shape), angles.sin().view(shape)
    pairs = rows[..., :turned].to(dtype)
    real, imaginary = pairs[..., 0::2], pairs[..., 1::2]
    rotated = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)
    return torch.cat([rotated.flatten(-2).to(rows.dtype), rows[..., turned:]], dim=-1)
