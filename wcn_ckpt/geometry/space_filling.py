"""Places of cells along space-filling curves.

Both curves visit the cells of a cube of side 2^k at the origin before any other cell, for every k,
and number them without gaps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BITS_PER_AXIS = 21
"""Three coordinates of 21 bits fit an int64 code."""

# Moving the upper part of the bits by 32, 16, 8, 4 and 2 leaves two zeros between neighbours.
_SPREAD = (
    (32, 0x001F00000000FFFF),
    (16, 0x001F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
)


def morton_codes(cells: Tensor, axes: Sequence[int] = (0, 1, 2)) -> Tensor:
    """Interleave the bits of coordinates.

    Bit t of axis `axes[i]` becomes bit `3 t + i` of the code (G. M. Morton, "A computer oriented
    geodetic data base", 1966).

    Args:
        cells: (N, 3) int64 in [0, 2^21).
        axes: axis numbers, the one that changes fastest along the curve first.

    Returns:
        (N,) int64 in [0, 2^63).

    Raises:
        ValueError: a coordinate does not fit.
    """
    _check_range(cells)
    return _interleave([cells[:, axis] for axis in axes])


def hilbert_codes(cells: Tensor, axes: Sequence[int] = (0, 1, 2)) -> Tensor:
    """Number cells along the Hilbert curve, on which neighbours differ by one step along one axis.

    Skilling's construction with 21 bits per axis (J. Skilling, "Programming the Hilbert curve",
    AIP Conference Proceedings 707, 2004). Point Transformer V3 calls the curve with x and y
    exchanged, `axes=(1, 0, 2)`, the transposed one.

    Args:
        cells: (N, 3) int64 in [0, 2^21).
        axes: axis numbers in the order in which the curve takes them.

    Returns:
        (N,) int64 in [0, 2^63).

    Raises:
        ValueError: a coordinate does not fit.
    """
    _check_range(cells)
    first, *others = (cells[:, axis] for axis in axes)
    for bit in reversed(range(1, BITS_PER_AXIS)):
        below = (1 << bit) - 1
        first = first ^ (first >> bit & 1) * below
        for place, other in enumerate(others):
            upper = other >> bit & 1
            exchanged = (first ^ other) & below * (1 - upper)
            first = first ^ exchanged ^ upper * below
            others[place] = other ^ exchanged
    second = others[0] ^ first
    third = others[1] ^ second
    turn = torch.zeros_like(third)
    for bit in range(1, BITS_PER_AXIS):
        turn ^= (third >> bit & 1) * ((1 << bit) - 1)
    return _interleave([third ^ turn, second ^ turn, first ^ turn])


def _interleave(columns: Sequence[Tensor]) -> Tensor:
    codes = torch.zeros_like(columns[0])
    for place, bits in enumerate(columns):
        for shift, mask in _SPREAD:
            bits = (bits | bits << shift) & mask
        codes |= bits << place
    return codes


def _check_range(cells: Tensor) -> None:
    if len(cells) == 0:
        return
    least, greatest = int(cells.min()), int(cells.max())
    if least < 0:
        raise ValueError(f"a cell on a curve has no negative coordinate, got {least}")
    if greatest >> BITS_PER_AXIS:
        raise ValueError(
            f"a code has {BITS_PER_AXIS} bits per axis, but cells span {greatest + 1}; "
            "use larger voxels"
        )
