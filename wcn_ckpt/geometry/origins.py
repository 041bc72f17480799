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


def from_origin(
    coordinates: Tensor, clouds: Tensor, batch_size: int, origin: Origin = "cloud"
) -> Tensor:
    """Return non-negative coordinates relative to the least corner of each cloud or of the batch.

    Args:
        coordinates: (N, 3) integers, or finite floating point numbers.
        clouds: (N,) int64 cloud of each row.
        batch_size: number of clouds.
        origin: whose corner.

    Returns:
        (N, 3) int64 for integers, and the dtype of the coordinates for others.

    Raises:
        ValueError: there is no such origin.
    """
    check_origin(origin)
    wide = coordinates if coordinates.is_floating_point() else coordinates.to(torch.int64)
    if len(wide) == 0:
        return wide
    if origin == "batch":
        return wide - wide.amin(dim=0)
    corners = wide.new_zeros(batch_size, wide.shape[1])
    index = clouds.unsqueeze(1).expand_as(wide)
    corners.scatter_reduce_(0, index, wide, "amin", include_self=False)
    return wide - corners[clouds]


def relative_coordinates(coords: BatchedCoordinates, origin: Origin = "cloud") -> Tensor:
    """Return `from_origin` of a batch's coordinates; cached on them."""
    return coords.cache.get(
        ("from_origin", check_origin(origin)),
        lambda: from_origin(coords.tensor, coords.batch_indices, coords.batch_size, origin),
    )
