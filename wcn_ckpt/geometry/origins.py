"""Coordinates relative to where a cloud, or a batch, begins."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from wcn_ckpt.geometry.coordinates import BatchedCoordinates

Origin = Literal["cloud", "batch"]
"""Whose least corner is the origin.

With `"cloud"` what is derived from coordinates (serial orders, window borders, rotary angles) does
not depend on the other clouds of a batch. With `"batch"` it does; that is what weights of
WarpConvNet were trained with.
"""


def check_origin(origin: Origin) -> Origin:
    """Return a valid origin.

    Raises:
        ValueError: there is no such origin.
    """
    if origin not in get_args(Origin):
        raise ValueError(f"origin must be 'cloud' or 'batch', got {origin!r}")
    return origin


def least_corners(
    coordinates: Tensor, clouds: Tensor, batch_size: int, origin: Origin = "cloud"
) -> Tensor:
    """Return where the coordinates of each cloud begin.

    Args:
        coordinates: (N, 3) integers, or finite floating point numbers.
        clouds: (N,) int64 cloud of each row.
        batch_size: number of clouds B.
        origin: whose corner.

    Returns:
        (B, 3), int64 for integers, and the dtype of the coordinates for others; zero for a cloud
        without rows.

    Raises:
        ValueError: there is no such origin.
    """
    check_origin(origin)
    wide = coordinates if coordinates.is_floating_point() else coordinates.to(torch.int64)
    corners = wide.new_zeros(batch_size, wide.shape[1])
    if origin == "batch" and len(wide):
        return corners + wide.amin(dim=0)
    index = clouds.unsqueeze(1).expand_as(wide)
    return corners.scatter_reduce_(0, index, wide, "amin", include_self=False)


def from_origin(
    coordinates: Tensor, clouds: Tensor, batch_size: int, origin: Origin = "cloud"
) -> Tensor:
    """Return non-negative (N, 3) coordinates relative to those of `least_corners`."""
    return coordinates - least_corners(coordinates, clouds, batch_size, origin)[clouds]


def relative_coordinates(coords: BatchedCoordinates, origin: Origin = "cloud") -> Tensor:
    """Return `from_origin` of a batch's coordinates, whose corners are cached on them."""
    clouds = coords.batch_indices
    corners = coords.cache.get(
        ("corners", check_origin(origin)),
        lambda: least_corners(coords.tensor, clouds, coords.batch_size, origin),
    )
    return coords.tensor - corners[clouds]
