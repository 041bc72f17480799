"""Laws of kernel maps, and brute force."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry import IntCoords
from wcn_ckpt.nn.functional import KernelMap, KernelShape, kernel_map
from wcn_ckpt.nn.functional import kernel_maps as module

LAWS = settings(derandomize=True, max_examples=40, deadline=None)

Pair = tuple[int, int, int]

CELL = st.tuples(st.integers(0, 2), *(st.integers(-4, 4),) * 3)
TRIPLE = st.tuples(*(st.integers(1, 3),) * 3)


@st.composite
def coordinates(draw: st.DrawFn) -> IntCoords:
    """Coordinates of three clouds, some empty, in any order inside a cloud."""
    rows = draw(st.lists(CELL, unique=True, max_size=40))
    clouds = [[row[1:] for row in rows if row[0] == cloud] for cloud in range(3)]
    return IntCoords([torch.tensor(cells, dtype=torch.int32).reshape(-1, 3) for cells in clouds])


def as_set(pairs: KernelMap) -> set[Pair]:
    """Return every pair as (offset, input row, output row)."""
    listed = {
        (offset, int(p), int(q))
        for offset, in_rows, out_rows in pairs.pairs()
        for p, q in zip(in_rows, out_rows, strict=True)
    }
    identity = pairs.layout.identity
    own = set() if identity is None else {(identity, p, p) for p in range(pairs.layout.num_in)}
    return listed | own


def brute_force(fine: IntCoords, coarse: IntCoords, kernel: KernelShape) -> set[Pair]:
    axes = [kernel.axis_offsets(axis) for axis in range(3)]
    rows = {tuple(cell): row for row, cell in enumerate(fine.batch_indexed.tolist())}
    found = set()
    for q, (cloud, *cell) in enumerate(coarse.batch_indexed.tolist()):
        for k, offset in enumerate(itertools.product(*axes)):
            query = [s * c + o for s, c, o in zip(kernel.stride, cell, offset, strict=True)]
            p = rows.get((cloud, *query))
            if p is not None:
                found.add((k, p, q))
    return found


@LAWS
@given(coordinates(), coordinates(), TRIPLE, TRIPLE, TRIPLE)
def test_agrees_with_brute_force(
    fine: IntCoords, coarse: IntCoords, size: Any, stride: Any, dilation: Any
) -> None:
    kernel = KernelShape(size, stride, dilation)

    pairs = kernel_map(fine, coarse, kernel)

    assert as_set(pairs) == brute_force(fine, coarse, kernel)
    assert sum(pairs.layout.counts) == len(pairs.in_rows) == len(pairs.out_rows)


@LAWS
@given(coordinates(), TRIPLE, TRIPLE)
def test_agrees_with_brute_force_on_the_same_voxels(
    coords: IntCoords, size: Any, dilation: Any
) -> None:
    kernel = KernelShape(size, dilation=dilation)

    assert as_set(kernel_map(coords, coords, kernel)) == brute_force(coords, coords, kernel)


@LAWS
@given(coordinates(), TRIPLE)
def test_an_odd_kernel_on_the_same_voxels_is_symmetric(coords: IntCoords, dilation: Any) -> None:
    kernel = KernelShape((3, 5, 1), dilation=dilation)

    pairs = as_set(kernel_map(coords, coords, kernel))

    assert pairs == {(kernel.volume - 1 - k, q, p) for k, p, q in pairs}
    assert {(kernel.volume // 2, p, p) for p in range(len(coords))} <= pairs


@LAWS
@given(coordinates(), coordinates(), TRIPLE, TRIPLE, TRIPLE)
def test_each_row_meets_at_most_one_other_under_an_offset(
    fine: IntCoords, coarse: IntCoords, size: Any, stride: Any, dilation: Any
) -> None:
    pairs = kernel_map(fine, coarse, KernelShape(size, stride, dilation))

    for _, in_rows, out_rows in pairs.pairs():
        for rows in (in_rows.tolist(), out_rows.tolist()):
            assert len(set(rows)) == len(rows)


@LAWS
@given(coordinates(), TRIPLE)
def test_transposing_exchanges_the_sides(coords: IntCoords, stride: Any) -> None:
    pairs = kernel_map(coords, coords, KernelShape((3, 2, 3), stride))

    assert as_set(pairs.transposed()) == {(k, q, p) for k, p, q in as_set(pairs)}


def test_all_pairs_include_the_identity() -> None:
    coords = make_voxels().batched_coordinates
    pairs = kernel_map(coords, coords, KernelShape((3, 3, 3)))

    in_rows, out_rows = pairs.all_pairs()

    assert pairs.layout.identity == 13
    expected = sorted((p, q) for _, p, q in as_set(pairs))
    assert sorted(zip(in_rows.tolist(), out_rows.tolist(), strict=True)) == expected


def test_offsets_run_row_by_row_with_the_last_axis_fastest() -> None:
    odd = KernelShape((1, 3, 3), dilation=(1, 1, 2)).offsets(torch.device("cpu"))
    even = KernelShape((2, 1, 2)).offsets(torch.device("cpu"))

    assert odd.tolist() == [[0, y, z] for y in (-1, 0, 1) for z in (-2, 0, 2)]
    assert even.tolist() == [[x, 0, z] for x in (0, 1) for z in (0, 1)]


@pytest.mark.parametrize("at_once", [1, 100, 1000])
def test_looking_up_in_parts_gives_the_same_map(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coords = make_voxels().batched_coordinates
    kernels = [KernelShape((3, 3, 3)), KernelShape((3, 3, 3), (2, 2, 2))]
    whole = [kernel_map(coords, coords, kernel) for kernel in kernels]
    coords.cache.clear()
    monkeypatch.setattr(module, "QUERIES_AT_ONCE", at_once)

    for kernel, expected in zip(kernels, whole, strict=True):
        pairs = kernel_map(coords, coords, kernel)
        assert torch.equal(pairs.in_rows, expected.in_rows)
        assert torch.equal(pairs.out_rows, expected.out_rows)
        assert pairs.layout == expected.layout


class TestCache:
    """Maps are kept with the coordinates, told apart by identity."""

    def test_the_same_question_has_the_same_answer(self) -> None:
        voxels = make_voxels()
        coords = voxels.replace_features(voxels.feats).batched_coordinates
        kernel = KernelShape((3, 3, 3))

        assert kernel_map(coords, coords, kernel) is kernel_map(
            voxels.batched_coordinates, coords, KernelShape((3, 3, 3))
        )
        assert kernel_map(coords, coords, kernel) is not kernel_map(
            coords, coords, KernelShape((3, 3, 3), dilation=(2, 2, 2))
        )

    def test_equal_counts_are_not_taken_for_equal_coordinates(self) -> None:
        fine = make_voxels().batched_coordinates
        one, two = (make_voxels(seed=seed).batched_coordinates for seed in (1, 2))
        kernel = KernelShape((3, 3, 3))

        assert as_set(kernel_map(fine, one, kernel)) == brute_force(fine, one, kernel)
        assert as_set(kernel_map(fine, two, kernel)) == brute_force(fine, two, kernel)

    @pytest.mark.parametrize("side", ["fine", "coarse"])
    def test_writing_into_either_side_makes_a_map_stale(self, side: str) -> None:
        fine, coarse = (make_voxels(seed=seed).batched_coordinates for seed in (1, 2))
        kernel = KernelShape((3, 3, 3))
        kernel_map(fine, coarse, kernel)

        {"fine": fine, "coarse": coarse}[side].tensor.add_(1)

        assert as_set(kernel_map(fine, coarse, kernel)) == brute_force(fine, coarse, kernel)

    def test_a_map_built_under_inference_mode_serves_training(self) -> None:
        coords = make_voxels().batched_coordinates
        with torch.inference_mode():
            pairs = kernel_map(coords, coords, KernelShape((3, 3, 3)))

        assert not pairs.in_rows.is_inference()
        assert kernel_map(coords, coords, KernelShape((3, 3, 3))) is pairs
