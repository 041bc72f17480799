"""Cubic windows of a grid, and where their borders lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from wcn_ckpt.geometry.cells import unique_cells
from wcn_ckpt.geometry.coordinates import BatchedCoordinates, Triple
from wcn_ckpt.geometry.origins import Origin, relative_coordinates

Fractions = tuple[float, float, float]
WindowOffset = str | Fractions

OFFSET_FRACTIONS: dict[str, Fractions] = {
    "zero": (0.0, 0.0, 0.0),
    "x": (0.5, 0.0, 0.0),
    "y": (0.0, 0.5, 0.0),
    "z": (0.0, 0.0, 0.5),
    "xy": (0.5, 0.5, 0.0),
    "xz": (0.5, 0.0, 0.5),
    "yz": (0.0, 0.5, 0.5),
    "xyz": (0.5, 0.5, 0.5),
}
"""Shifts of the windows along each axis, as fractions of their edge."""

RANDOM_OFFSET = "random"


def check_window_offset(offset: WindowOffset | Sequence[float]) -> WindowOffset:
    """Return a valid offset: a key of `OFFSET_FRACTIONS`, `"random"`, or a tuple of fractions.

    Raises:
        TypeError: it is neither a name nor a sequence of numbers.
        ValueError: there is no such name, or not three finite numbers.
    """
    if isinstance(offset, str):
        if offset not in OFFSET_FRACTIONS and offset != RANDOM_OFFSET:
            raise ValueError(
                f"a window offset must be one of {[*OFFSET_FRACTIONS, RANDOM_OFFSET]} or three "
                f"fractions of the window's edge, got {offset!r}"
            )
        return offset
    if not isinstance(offset, Sequence) or not all(isinstance(part, Real) for part in offset):
        raise TypeError(
            "a window offset must be a name or three fractions of the window's edge, got "
            f"{offset!r} of type {type(offset).__name__}"
        )
    fractions = [float(part) for part in offset]
    if len(fractions) != 3 or not all(map(math.isfinite, fractions)):
        raise ValueError(f"a window offset needs three finite fractions, got {offset!r}")
    x, y, z = fractions
    return x, y, z


def resolve_window_offset(offset: WindowOffset | Sequence[float]) -> WindowOffset:
    """Return an offset that means the same windows whenever it is asked.

    A block that may be run again resolves its offset before the part that is: `"random"` becomes
    three fractions, drawn uniformly with torch's CPU generator.

    Raises:
        TypeError: as `check_window_offset`.
        ValueError: as `check_window_offset`.
    """
    offset = check_window_offset(offset)
    if offset != RANDOM_OFFSET:
        return offset
    x, y, z = torch.rand(3, dtype=torch.float64, device="cpu").tolist()
    return x, y, z


def window_shift(offset: WindowOffset, window_size: Triple) -> Triple:
    """Return the shift in cells: each fraction of the edge, rounded half to even."""
    fractions = OFFSET_FRACTIONS[offset] if isinstance(offset, str) else offset
    x, y, z = (round(part * edge) for part, edge in zip(fractions, window_size, strict=True))
    return x, y, z


def rows_by_window(
    coords: BatchedCoordinates,
    window_size: Triple,
    shift: Triple = (0, 0, 0),
    origin: Origin = "cloud",
) -> tuple[Tensor, Tensor]:
    """Sort rows by `(cloud, window)`; a window is `floor((c - origin + shift) / window_size)`.

    Args:
        coords: N rows.
        window_size: edges of a window, in units of the coordinates.
        shift: by how much the windows are moved back, in the same units.
        origin: where the windows start.

    Returns:
        The (N,) int64 rows, window after window, and how many each window has, int64 on the
        device of the rows.
    """
    moved = relative_coordinates(coords, origin)
    moved = moved + torch.tensor(shift, device=moved.device)
    edges = torch.tensor(window_size, device=moved.device)
    windows = moved.div(edges, rounding_mode="floor").to(torch.int64)
    _, _, window = unique_cells(windows, coords.batch_indices, coords.batch_size)
    return window.argsort(stable=True), window.bincount()
