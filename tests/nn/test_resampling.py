"""Between voxels and their children: numbering, round trips, and what is remembered."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.geometry.clouds import LISTED, make_points, make_voxels
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.modules import (
    SparseChannel2Spatial,
    SparseConv3d,
    SparseDownsample,
    SparseSpatial2Channel,
    SparseSubdivide,
    SparseUpsample,
)

Cell = tuple[int, int, int, int]


def by_cell(voxels: Voxels) -> dict[Cell, list[float]]:
    rows = zip(voxels.coords.tolist(), voxels.feats.tolist(), strict=True)
    return {tuple(cell): row for cell, row in rows}


def packed_by_hand(voxels: Voxels, factor: int) -> dict[Cell, list[float]]:
    """One parent at a time, as the numbering is written in words."""
    packed: dict[Cell, list[float]] = {}
    width = voxels.num_channels
    for (cloud, *cell), row in by_cell(voxels).items():
        parent = (cloud, *(c // factor for c in cell))
        slot = sum((c % factor) * factor**axis for axis, c in enumerate(cell))
        full = packed.setdefault(parent, [0.0] * width * factor**3)
        full[slot * width : (slot + 1) * width] = row
    return packed


def subdivision(voxels: Voxels, factor: int = 2, seed: int = 0, dtype: Any = torch.bool) -> Voxels:
    generator = torch.Generator().manual_seed(seed)
    active = torch.rand(len(voxels), factor**3, generator=generator) < 0.3
    return voxels.replace_features(active.to(dtype))


SCENES = st.tuples(
    st.lists(st.integers(0, 25), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 100)
)


@given(SCENES)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_packing_and_unpacking_is_the_identity(scene: tuple[list[int], int, int]) -> None:
    sizes, factor, seed = scene
    voxels = make_voxels(sizes, 3, seed=seed)

    packed = SparseSpatial2Channel(factor)(voxels)
    back = SparseChannel2Spatial(factor)(packed)

    assert by_cell(packed) == packed_by_hand(voxels, factor)
    assert factor == 1 or packed.coords.tolist() == sorted(packed.coords.tolist())
    assert torch.equal(back.coords, voxels.coords)
    assert torch.equal(back.feats, voxels.feats)
    assert back.batch_size == packed.batch_size == len(sizes)
    assert back.offsets.tolist() == voxels.offsets.tolist()


@given(SCENES)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_unpacking_and_packing_keeps_the_children_that_survive(
    scene: tuple[list[int], int, int],
) -> None:
    sizes, factor, seed = scene
    coarse = make_voxels(sizes, 2 * factor**3, seed=seed)
    kept = subdivision(coarse, factor, seed)

    fine = SparseChannel2Spatial(factor)(coarse, kept)
    back = by_cell(SparseSpatial2Channel(factor)(fine))

    mask = kept.feats.repeat_interleave(2, dim=1)
    expected = by_cell(coarse.replace_features(coarse.feats * mask))
    survive = {cell for cell, active in by_cell(kept).items() if any(active)}
    assert back == {cell: row for cell, row in expected.items() if cell in survive}
    assert fine.batch_size == len(sizes)


def test_children_are_ordered_by_parent_and_slot_with_x_fastest() -> None:
    coarse = Voxels([torch.tensor([[1, -2, 3], [0, 0, 0]])], [torch.arange(32.0).reshape(2, 16)])
    active = torch.zeros(2, 8, dtype=torch.bool)
    active[0, [1, 2, 4, 7]] = active[1, 0] = True

    fine = SparseChannel2Spatial(2)(coarse, coarse.replace_features(active))

    assert fine.coordinates.tolist() == [[3, -4, 6], [2, -3, 6], [2, -4, 7], [3, -3, 7], [0, 0, 0]]
    assert fine.feats.tolist() == [[2, 3], [4, 5], [8, 9], [14, 15], [16, 17]]
    assert fine.coordinates.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16])
def test_a_subdivision_may_be_numbers(dtype: torch.dtype) -> None:
    coarse = make_voxels(LISTED, 16)

    out = SparseChannel2Spatial(2)(coarse, subdivision(coarse, dtype=dtype))

    assert by_cell(out) == by_cell(SparseChannel2Spatial(2)(coarse, subdivision(coarse)))
    assert 0 < len(out) < 8 * len(coarse)


def test_a_subdivision_wins_over_what_is_remembered() -> None:
    packed = SparseSpatial2Channel(2)(make_voxels(LISTED, 2))
    one_each = torch.zeros(len(packed), 8, dtype=torch.bool)
    one_each[:, 0] = True

    out = SparseChannel2Spatial(2)(packed, packed.replace_features(one_each))

    assert torch.equal(out.coordinates, packed.coordinates * 2)


def test_autocast_leaves_the_subdivision_alone() -> None:
    packed = SparseSpatial2Channel(2)(make_voxels(LISTED, 2, torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = SparseChannel2Spatial(2)(packed, subdivision(packed))

    assert out.dtype == torch.bfloat16
    assert torch.equal(out.coords, SparseChannel2Spatial(2)(packed, subdivision(packed)).coords)


def test_children_are_remembered_as_long_as_the_coordinates_stay() -> None:
    voxels = make_voxels(LISTED, 2)
    packed = SparseSpatial2Channel(2)(voxels)
    unpack = SparseChannel2Spatial(2)

    for kept in (
        packed.replace_features(packed.feats * 2),
        packed + packed,
        packed.to(dtype=torch.float32),
        SparseConv3d(16, 16, 3).double()(packed),
    ):
        assert torch.equal(unpack(kept).coords, voxels.coords)

    for lost in (
        packed.replace(packed.coordinate_tensor.clone()),
        SparseConv3d(16, 16, 2, stride=2).double()(packed),
        copy.deepcopy(packed),
        pickle.loads(pickle.dumps(packed)),
        packed[0],
    ):
        with pytest.raises(ValueError, match="do not remember their children under factor 2"):
            unpack(lost)
    with pytest.raises(ValueError, match="factor 1"):
        SparseChannel2Spatial(1)(packed)


def test_several_levels_are_remembered() -> None:
    voxels = make_voxels(LISTED, 2)
    down, up = SparseSpatial2Channel(2), SparseChannel2Spatial(2)

    out = up(up(up(down(down(down(voxels))))))

    assert torch.equal(out.coords, voxels.coords)
    assert torch.equal(out.feats, voxels.feats)


def test_tables_are_not_needed() -> None:
    voxels = make_voxels(LISTED, 2)
    packed = SparseSpatial2Channel(2)(voxels)
    voxels.batched_coordinates.cache.clear()
    packed.batched_coordinates.cache.clear()

    assert torch.equal(SparseChannel2Spatial(2)(packed).feats, voxels.feats)
    assert torch.equal(SparseSpatial2Channel(2)(voxels).feats, packed.feats)


def test_tensor_stride() -> None:
    voxels = make_voxels(LISTED, 8, tensor_stride=2)
    packed = SparseSpatial2Channel(2)(voxels)

    assert packed.tensor_stride == (4, 4, 4)
    assert SparseChannel2Spatial(2)(packed).tensor_stride == (2, 2, 2)
    assert SparseSubdivide(2)(voxels).tensor_stride == (1, 1, 1)
    assert SparseSubdivide(4)(voxels).tensor_stride is None
    assert SparseSubdivide(2)(make_voxels()).tensor_stride is None


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_downsampling_reduces_the_children_there_are(mode: Any) -> None:
    voxels = make_voxels(LISTED, 3)
    children: dict[Cell, list[list[float]]] = {}
    for (cloud, *cell), row in by_cell(voxels).items():
        children.setdefault((cloud, *(c // 3 for c in cell)), []).append(row)

    out = SparseDownsample(3, mode)(voxels)

    reduce = torch.mean if mode == "mean" else torch.amax
    assert out.batch_size == len(LISTED)
    assert by_cell(out).keys() == children.keys()
    for cell, row in by_cell(out).items():
        expected = reduce(torch.tensor(children[cell], dtype=torch.float64), dim=0)
        torch.testing.assert_close(torch.tensor(row, dtype=torch.float64), expected)


def test_upsampling_copies_to_the_children() -> None:
    voxels = make_voxels(LISTED, 3)
    coarse = SparseDownsample(2)(voxels)

    out = SparseUpsample(2)(coarse)

    assert torch.equal(out.coords, voxels.coords)
    rows = by_cell(coarse)
    for (cloud, *cell), row in by_cell(out).items():
        assert row == rows[(cloud, *(c // 2 for c in cell))]
    # Twice the same factor, and back: nothing is mixed up between the levels.
    twice = SparseDownsample(2)(coarse)
    assert torch.equal(SparseUpsample(2)(twice).coords, coarse.coords)
    kept = subdivision(coarse)
    assert len(SparseUpsample(2)(coarse, kept)) == int(kept.feats.sum())


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_subdividing_makes_all_children_with_z_fastest(factor: int) -> None:
    voxels = make_voxels((3, 0, 2), 2)

    out = SparseSubdivide(factor)(voxels)

    steps = list(itertools.product(range(factor), repeat=3))
    expected = [
        [cloud, *(factor * c + s for c, s in zip(cell, step, strict=True))]
        for cloud, *cell in voxels.coords.tolist()
        for step in steps
    ]
    assert out.coords.tolist() == expected
    assert torch.equal(out.feats, voxels.feats.repeat_interleave(factor**3, dim=0))
    assert out.offsets.tolist() == [factor**3 * n for n in voxels.offsets.tolist()]


def test_gradients() -> None:
    voxels = make_voxels((6, 5), 2)
    packed = SparseSpatial2Channel(2)(voxels)
    kept = subdivision(packed)

    def through(layer: Any, x: Voxels, *rest: Any) -> Any:
        return lambda rows: layer(x.replace_features(rows), *rest).feats

    def check(function: Any, rows: Tensor) -> None:
        assert torch.autograd.gradcheck(function, rows.detach().clone().requires_grad_())

    check(through(SparseSpatial2Channel(2), voxels), voxels.feats)
    check(through(SparseChannel2Spatial(2), packed), packed.feats)
    check(through(SparseChannel2Spatial(2), packed, kept), packed.feats)
    check(through(SparseDownsample(2), voxels), voxels.feats)
    check(through(SparseDownsample(2, "max"), voxels), voxels.feats)
    check(through(SparseUpsample(2), packed, kept), packed.feats)
    check(through(SparseSubdivide(2), voxels), voxels.feats)


@pytest.mark.parametrize("sizes", [(0,), (0, 0, 0)])
def test_nothing_stays_nothing(sizes: tuple[int, ...]) -> None:
    voxels = make_voxels(sizes, 8)

    for out in (
        SparseSpatial2Channel(2)(voxels),
        SparseChannel2Spatial(2)(voxels, subdivision(voxels)),
        SparseDownsample(2)(voxels),
        SparseSubdivide(2)(voxels),
        SparseUpsample(2)(voxels, subdivision(voxels)),
    ):
        assert len(out) == 0
        assert out.batch_size == len(sizes)


V = make_voxels((5, 4), 8)
FAR = Voxels([torch.tensor([[2**30, 0, 0]])], [torch.ones(1, 8)])
TWICE = Voxels([torch.zeros(2, 3, dtype=torch.int32)], [torch.ones(2, 8)])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: SparseSpatial2Channel(0), ValueError, "factor.*got 0"),
        (lambda: SparseSpatial2Channel(2.0), TypeError, "factor.*2.0"),
        (lambda: SparseDownsample(2, "sum"), ValueError, "mode.*'sum'"),
        (lambda: SparseSpatial2Channel(2)(make_points((3,))), TypeError, "Voxels, got Points"),
        (lambda: SparseSpatial2Channel(2)(TWICE), ValueError, "repeat"),
        (lambda: SparseDownsample(2)(TWICE), ValueError, "repeat"),
        (lambda: SparseSubdivide(2)(TWICE), ValueError, "repeat"),
        (lambda: SparseChannel2Spatial(2)(TWICE, TWICE), ValueError, "repeat"),
        (lambda: SparseChannel2Spatial(2)(V), ValueError, "remember"),
        (lambda: SparseUpsample(2)(V), ValueError, "remember"),
        (
            lambda: SparseChannel2Spatial(2)(make_voxels((5, 4), 12), subdivision(V)),
            ValueError,
            "12 channels cannot be spread over 8",
        ),
        (lambda: SparseChannel2Spatial(2)(V, V.feats > 0), TypeError, "Voxels, got Tensor"),
        (
            lambda: SparseChannel2Spatial(2)(V, subdivision(V, 3)),
            ValueError,
            r"\(9, 8\), got \(9, 27\)",
        ),
        (
            lambda: SparseChannel2Spatial(2)(V, subdivision(make_voxels((4, 5), 8))),
            ValueError,
            r"\[0, 5, 9\], got \[0, 4, 9\]",
        ),
        (
            lambda: SparseChannel2Spatial(2)(V, subdivision(make_voxels((5, 4), 8, seed=9))),
            ValueError,
            "row 0 is",
        ),
        (lambda: SparseChannel2Spatial(2)(V, V), ValueError, "bools, or 0 and 1, got"),
        (lambda: SparseSubdivide(4)(FAR), ValueError, "int32|lie in"),
    ],
)
def test_refuses(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
