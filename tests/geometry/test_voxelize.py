"""Voxelization against brute force, and its laws."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.geometry.clouds import make_points
from wcn_ckpt.geometry import Points, points_to_voxels
from wcn_ckpt.geometry.reductions import Reduction

LAWS = settings(derandomize=True, max_examples=25, deadline=None)

REDUCTIONS: dict[Reduction, object] = {
    "mean": lambda rows: rows.mean(0),
    "sum": lambda rows: rows.sum(0),
    "max": lambda rows: rows.amax(0),
    "min": lambda rows: rows.amin(0),
    "mul": lambda rows: rows.prod(0),
    "var": lambda rows: rows.var(0, correction=0),
    "std": lambda rows: (rows.var(0, correction=0) + 1e-6).sqrt(),
}

Cell = tuple[int, int, int, int]


@st.composite
def point_batches(draw: st.DrawFn) -> Points:
    """Batches of up to three clouds, empty ones included, on a coarse lattice of positions."""
    sizes = draw(st.lists(st.integers(0, 8), min_size=1, max_size=3))
    positions = [
        [[draw(st.integers(-9, 9)) / 4 for _ in range(3)] for _ in range(size)] for size in sizes
    ]
    clouds = [torch.tensor(rows, dtype=torch.float64).reshape(-1, 3) for rows in positions]
    features = [torch.arange(2.0 * size, dtype=torch.float64).reshape(-1, 2) for size in sizes]
    return Points(clouds, features)


def members(points: Points, voxel_size: float) -> dict[Cell, list[int]]:
    """Return the rows of each occupied cell, one point at a time."""
    cells: dict[Cell, list[int]] = defaultdict(list)
    for row, (cloud, *position) in enumerate(points.coords.tolist()):
        x, y, z = (math.floor(value / voxel_size) for value in position)
        cells[int(cloud), x, y, z].append(row)
    return cells


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_agrees_with_brute_force(reduction: Reduction) -> None:
    points = make_points(channels=3)

    voxels = points.to_voxels(0.5, reduction)

    reduce = REDUCTIONS[reduction]
    assert callable(reduce)
    cells = members(points, 0.5)
    assert voxels.coords.tolist() == [list(cell) for cell in sorted(cells)]
    expected = torch.stack([reduce(points.feats[rows]) for _, rows in sorted(cells.items())])
    torch.testing.assert_close(voxels.feats, expected)
    assert voxels.coordinate_tensor.dtype == torch.int32
    assert voxels.voxel_size == 0.5
    assert voxels.batch_size == 4


@LAWS
@given(point_batches())
def test_mean_of_each_cell(points: Points) -> None:
    voxels = points.to_voxels(0.5)

    cells = members(points, 0.5)
    assert voxels.coords.tolist() == [list(cell) for cell in sorted(cells)]
    for row, cell in enumerate(sorted(cells)):
        torch.testing.assert_close(voxels.feats[row], points.feats[cells[cell]].mean(0))


@LAWS
@given(point_batches())
def test_voxelizing_again_changes_nothing(points: Points) -> None:
    once = points.to_voxels(0.5)

    again = once.to_point().to_voxels(0.5)

    assert torch.equal(again.coords, once.coords)
    assert torch.equal(again.feats, once.feats)
    assert again.offsets.tolist() == once.offsets.tolist()


@LAWS
@given(point_batches())
def test_a_cloud_does_not_depend_on_its_batch(points: Points) -> None:
    together = points.to_voxels(0.5)

    for cloud in range(points.batch_size):
        alone = points[cloud].to_voxels(0.5)
        assert torch.equal(together[cloud].coordinate_tensor, alone.coordinate_tensor)
        assert torch.equal(together[cloud].feats, alone.feats)


@LAWS
@given(point_batches())
def test_random_keeps_the_first_point_of_each_cell(points: Points) -> None:
    voxels = points_to_voxels(points, 0.5)

    kept = sorted(rows[0] for rows in members(points, 0.5).values())
    assert torch.equal(voxels.feats, points.feats[kept])
    assert voxels.coordinate_tensor.tolist() == (
        (points.coordinate_tensor[kept] / 0.5).floor().int().tolist()
    )


def test_random_with_a_generator_draws_any_point_of_a_cell() -> None:
    points = Points([torch.zeros(4, 3)], [torch.arange(4.0)[:, None]])

    def draw(seed: int) -> float:
        generator = torch.Generator().manual_seed(seed)
        return points_to_voxels(points, 1.0, generator=generator).feats.item()

    assert {draw(seed) for seed in range(40)} == {0.0, 1.0, 2.0, 3.0}
    assert draw(7) == draw(7)


def test_the_voxel_of_each_point_is_told() -> None:
    points = make_points()

    for method in ("torch", "morton"):
        voxels, unique = points_to_voxels(points, 0.5, "mean", method, return_to_unique=True)
        cells = unique.to_original(voxels.coords)
        assert torch.equal(cells[:, 1:], (points.coordinate_tensor / 0.5).floor().int())
        assert torch.equal(cells[:, 0].double(), points.coords[:, 0])


def test_morton_changes_the_order_alone() -> None:
    points = make_points()

    lexicographic = points_to_voxels(points, 0.25, "mean")
    morton = points_to_voxels(points, 0.25, "mean", "morton")

    assert morton.coords.tolist() != lexicographic.coords.tolist()
    assert sorted(morton.coords.tolist()) == lexicographic.coords.tolist()
    assert morton.offsets.tolist() == lexicographic.offsets.tolist()


@pytest.mark.parametrize("reduction", ["mean", "max", "std", "mul", "random"])
def test_gradients_flow_to_the_points(reduction: Reduction) -> None:
    points = make_points((6, 0, 3), channels=2)

    def voxelize(features: Tensor) -> Tensor:
        return points.replace_features(features).to_voxels(1.0, reduction).feats

    assert torch.autograd.gradcheck(voxelize, points.feats.requires_grad_())


def test_downsampling_keeps_positions() -> None:
    points = make_points()

    thin = points.voxel_downsample(0.5)

    kept = sorted(rows[0] for rows in members(points, 0.5).values())
    assert torch.equal(thin.coordinate_tensor, points.coordinate_tensor[kept])
    assert torch.equal(thin.feats, points.feats[kept])
    assert thin.batch_size == points.batch_size


def test_downsampling_can_reduce_the_features() -> None:
    points = make_points()

    thin = points.voxel_downsample(0.5, "mean")

    by_first = {rows[0]: rows for rows in members(points, 0.5).values()}
    expected = torch.stack([points.feats[by_first[first]].mean(0) for first in sorted(by_first)])
    torch.testing.assert_close(thin.feats, expected)


@pytest.mark.parametrize("voxel_size", [0.0, -1.0, math.nan, math.inf])
def test_refuses_voxel_sizes(voxel_size: float) -> None:
    with pytest.raises(ValueError, match="voxel_size must be positive and finite"):
        make_points().to_voxels(voxel_size)


def test_a_voxel_size_may_be_a_numpy_scalar() -> None:
    points = make_points()

    voxels = points.to_voxels(np.float32(0.5))

    assert torch.equal(voxels.coords, points.to_voxels(0.5).coords)
    assert torch.equal(voxels.to_point().coords, points.to_voxels(0.5).to_point().coords)


def test_refuses_what_has_no_meaning() -> None:
    points = make_points()

    with pytest.raises(TypeError, match="'1'"):
        points.to_voxels("1")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(TypeError, match="True"):
        points.to_voxels(True)
    other: list[Any] = [points.to_voxels(1.0), "points"]
    for thing in other:
        with pytest.raises(TypeError, match=f"only Points .* got {type(thing).__name__}"):
            points_to_voxels(thing, 1.0)
    with pytest.raises(ValueError, match="'median'"):
        points.to_voxels(1.0, "median")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(ValueError, match="'hash'"):
        points_to_voxels(points, 1.0, "mean", "hash")  # type: ignore[call-overload]  # as above
    with pytest.raises(ValueError, match="another reduction"):
        points_to_voxels(points, 1.0, "random", return_to_unique=True)
    with pytest.raises(ValueError, match="beyond cell 2147483647"):
        points.to_voxels(1e-12)


def test_no_points_are_no_voxels() -> None:
    assert len(Points([], []).to_voxels(1.0)) == 0
    empty = Points([torch.zeros(0, 3)] * 2, [torch.zeros(0, 5)] * 2).to_voxels(1.0)
    assert (len(empty), empty.batch_size, empty.num_channels) == (0, 2, 5)
