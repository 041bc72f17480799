"""Real terrain and synthetic rooms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from matrix.extras import import_extra
from matrix.inputs import (
    ROOM_FEATURES,
    TERRAIN_FEATURES,
    room_points,
    terrain_points,
    terrain_voxels,
    widen_features,
)
from wcn_ckpt.geometry import Points


def test_terrain_is_in_metres() -> None:
    points = terrain_points((344, 403))

    east, north, up = points.coordinate_tensor.aminmax(dim=0)[1].sub(
        points.coordinate_tensor.amin(0)
    )
    # A third of a degree of longitude and 0.29 degrees of latitude, at 36.6 degrees north.
    assert 29_700 < east < 30_200
    assert 31_700 < north < 31_900
    assert up == 1076 - 236
    assert len(points) == 344 * 403


def test_terrain_features_describe_the_terrain() -> None:
    points = terrain_points((344, 403))
    feature = dict(zip(TERRAIN_FEATURES, points.feats.unbind(1), strict=True))

    heights = points.coordinate_tensor[:, 2]
    assert torch.corrcoef(torch.stack([feature["height"], heights]))[0, 1] > 0.999
    torch.testing.assert_close(points.feats.mean(0), torch.zeros(8), atol=1e-4, rtol=0)
    torch.testing.assert_close(points.feats.std(0), torch.ones(8), atol=1e-4, rtol=0)
    # Where the ground rises to the east, its normal leans west.
    grid = heights.reshape(344, 403)
    rise = (grid[:, 2:] - grid[:, :-2]).flatten()
    lean = feature["normal_east"].reshape(344, 403)[:, 1:-1].flatten()
    assert torch.corrcoef(torch.stack([rise, lean]))[0, 1] < -0.95


def test_north_is_up_the_grid() -> None:
    points = terrain_points((3, 2))
    east, north, _ = points.coordinate_tensor.reshape(3, 2, 3).unbind(-1)

    assert (north.diff(dim=0) < 0).all()
    assert (east.diff(dim=1) > 0).all()
    torch.testing.assert_close(points.coordinate_tensor.mean(0), torch.zeros(3), atol=1e-3, rtol=0)


@pytest.mark.parametrize("make", [terrain_points, terrain_voxels, room_points])
def test_a_seed_decides_everything(make: Callable[..., Any]) -> None:
    one, same, other = make(clouds=2, seed=3), make(clouds=2, seed=3), make(clouds=2, seed=4)

    assert torch.equal(one.coords, same.coords)
    assert torch.equal(one.feats, same.feats)
    assert not torch.equal(one[0].feats[:200], other[0].feats[:200])
    assert not torch.equal(one[0].feats[:200], one[1].feats[:200])
    assert one.batch_size == 2
    assert one.dtype == one.feats.dtype == torch.float32


def test_making_inputs_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()

    terrain_points()
    room_points()

    assert torch.equal(torch.get_rng_state(), before)


def test_terrain_voxels_come_in_every_size() -> None:
    small = terrain_voxels()
    large = terrain_voxels((250, 270), clouds=4)

    assert 250 < len(small) < 400
    assert len(large) > 200_000
    assert small.batched_coordinates.index
    assert small.voxel_size == 90.0
    assert (small.coordinate_tensor < 0).any()


@pytest.mark.parametrize("channels", [1, 8, 16, 27])
@pytest.mark.parametrize("make", [terrain_voxels, room_points])
def test_channels_are_as_many_as_wanted(make: Callable[..., Any], channels: int) -> None:
    geometry = make(channels=channels)

    assert geometry.num_channels == channels
    assert geometry.feats.isfinite().all()
    assert geometry.feats.unique(dim=1).shape[1] == channels


def test_widening_keeps_the_first_columns() -> None:
    rows = torch.randn(5, 2)

    wide = widen_features(rows, 7)

    parts = [rows, rows.sin(), rows.cos(), (2 * rows).sin()[:, :1]]
    assert torch.equal(wide, torch.cat(parts, dim=1))
    assert torch.equal(widen_features(rows, 1), rows[:, :1])


def test_rooms_have_surfaces() -> None:
    points: Points = room_points(4000)
    feature = dict(zip(ROOM_FEATURES, points.feats.unbind(1), strict=True))
    normals = points.feats[:, :3]

    assert torch.equal(normals.abs().sum(1), torch.ones(4000))
    assert torch.equal(feature["height"], points.coordinate_tensor[:, 2])
    assert points.coordinate_tensor[:, 2].amin() == 0
    assert (feature["wall_distance"] > -1e-5).all()
    on_floor = (feature["height"] == 0) & (feature["normal_z"] == 1)
    assert 0.1 < on_floor.float().mean() < 0.4
    furniture = (feature["normal_z"] == 1) & (feature["height"] > 0.2)
    assert furniture.any()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: terrain_points((345, 1)), r"344 x 403 .*\(345, 1\)"),
        (lambda: terrain_points((0, 1)), r"\(0, 1\)"),
        (lambda: terrain_points(clouds=0), "clouds must be a positive integer, got 0"),
        (lambda: terrain_voxels(channels=-1), "channels .* -1"),
        (lambda: terrain_voxels(voxel_size=0.0), "voxel_size"),
        (lambda: room_points(0), "num_points"),
        (lambda: room_points(furniture=0), "furniture"),
    ],
)
def test_refuses(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.cbook", None)

    with pytest.raises(ModuleNotFoundError, match=r"the terrain needs matplotlib.*wcn-ckpt\[lab\]"):
        import_extra("matplotlib.cbook", "the terrain")
