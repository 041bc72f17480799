"""Coordinates relative to the corner of a cloud or of the batch."""

from __future__ import annotations

import pytest
import torch

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import Geometry
from wcn_ckpt.geometry.origins import Origin, check_origin, from_origin, relative_coordinates

GEOMETRIES = [make_voxels((30, 0, 25, 0)), make_points((30, 0, 25, 0)), make_voxels((0, 0))]


@pytest.mark.parametrize("x", GEOMETRIES)
def test_each_cloud_begins_at_its_own_corner(x: Geometry) -> None:
    relative = relative_coordinates(x.batched_coordinates)

    offsets = x.offsets.tolist()
    for start, stop in zip(offsets, offsets[1:], strict=False):
        if start < stop:
            rows = x.coordinate_tensor[start:stop]
            assert torch.equal(relative[start:stop], rows - rows.amin(0))
    assert relative.dtype == (torch.float64 if x.coordinates.is_floating_point() else torch.int64)


@pytest.mark.parametrize("x", GEOMETRIES)
def test_or_at_the_corner_of_the_batch(x: Geometry) -> None:
    relative = relative_coordinates(x.batched_coordinates, "batch")

    corner = x.coordinate_tensor.amin(0) if len(x) else 0
    assert torch.equal(relative, x.coordinate_tensor - corner)


def test_far_corners_do_not_overflow() -> None:
    cells = torch.tensor([[-(2**31), 0, 0], [2**31 - 1, 0, 0]], dtype=torch.int32)

    relative = from_origin(cells, torch.tensor([0, 0]), 1)

    assert relative[1, 0] == 2**32 - 1


@pytest.mark.parametrize("origin", ["world", None, 0])
def test_refuses_other_origins(origin: Origin) -> None:
    with pytest.raises(ValueError, match=f"'cloud' or 'batch', got {origin!r}"):
        check_origin(origin)
