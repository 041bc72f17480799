"""Which voxels come out of a convolution, against sets in plain Python."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry import IntCoords
from wcn_ckpt.nn.functional import KernelShape, convolution_sites
from wcn_ckpt.nn.functional.sites import parent_rows, strided_sites

LAWS = settings(derandomize=True, max_examples=30, deadline=None)
CELLS = st.lists(st.tuples(*(st.integers(-6, 6),) * 3), unique=True, max_size=12)
TRIPLE = st.tuples(*(st.integers(1, 3),) * 3)

Row = tuple[int, ...]


def batch(clouds: list[list[tuple[int, int, int]]], stride: int | None = None) -> IntCoords:
    tensors = [torch.tensor(cells, dtype=torch.int32).reshape(-1, 3) for cells in clouds]
    return IntCoords(tensors, tensor_stride=stride)


def rows_of(coords: IntCoords) -> list[Row]:
    return [tuple(row) for row in coords.batch_indexed.tolist()]


def parents(rows: list[Row], stride: Row) -> set[Row]:
    return {(b, *(c // s for c, s in zip(cell, stride, strict=True))) for b, *cell in rows}


def reached(rows: set[Row], kernel: KernelShape, scale: Row = (1, 1, 1)) -> set[Row]:
    offsets = list(itertools.product(*(kernel.axis_offsets(axis) for axis in range(3))))
    return {
        (b, *(s * c + o for c, s, o in zip(cell, scale, offset, strict=True)))
        for b, *cell in rows
        for offset in offsets
    }


@LAWS
@given(st.lists(CELLS, min_size=1, max_size=3), TRIPLE)
def test_a_stride_keeps_parents_alone_and_sorts_them(clouds: Any, stride: Any) -> None:
    coords = batch(clouds)

    out, _ = convolution_sites(coords, KernelShape((3, 3, 3), stride))

    if stride == (1, 1, 1):
        assert out is coords
    else:
        assert rows_of(out) == sorted(parents(rows_of(coords), stride))
        assert out.tensor_stride == stride
    assert out.batch_size == len(clouds)


@LAWS
@given(st.lists(CELLS, min_size=1, max_size=3), TRIPLE, TRIPLE, TRIPLE)
def test_generative_grows_by_the_reach_of_the_kernel(
    clouds: Any, size: Any, stride: Any, dilation: Any
) -> None:
    coords = batch(clouds)
    kernel = KernelShape(size, stride, dilation)

    out, _ = convolution_sites(coords, kernel, generative=True)

    assert rows_of(out) == sorted(reached(parents(rows_of(coords), stride), kernel))


@LAWS
@given(st.lists(CELLS, min_size=1, max_size=3), TRIPLE, TRIPLE)
def test_transposed_generative_scales_up(clouds: Any, size: Any, stride: Any) -> None:
    coords = batch(clouds, stride=6)
    kernel = KernelShape(size, stride)

    out, _ = convolution_sites(coords, kernel, transposed=True, generative=True)

    assert rows_of(out) == sorted(reached(set(rows_of(coords)), kernel, stride))
    assert out.tensor_stride == tuple(6 // s for s in stride)


@pytest.mark.parametrize("generative", [True, False])
def test_sites_are_the_same_object_again(generative: bool) -> None:
    coords = make_voxels().batched_coordinates
    shapes = [KernelShape((3, 3, 3), (2, 2, 2)), KernelShape((3, 3, 3), (2, 2, 2))]

    first, second = (convolution_sites(coords, s, generative=generative)[0] for s in shapes)

    assert first is second


def test_sites_know_the_stride_that_they_were_derived_under() -> None:
    coords = make_voxels().batched_coordinates

    assert strided_sites(coords, (2, 2, 2)).tensor_stride == (2, 2, 2)
    assert strided_sites(coords.with_stride((3, 3, 3)), (2, 2, 2)).tensor_stride == (6, 6, 6)


def test_every_voxel_finds_its_parent() -> None:
    fine = make_voxels().batched_coordinates
    coarse = strided_sites(fine, (2, 3, 1))

    rows = parent_rows(fine, coarse, (2, 3, 1))

    found = coarse.batch_indexed[rows]
    steps = torch.tensor([1, 2, 3, 1])
    assert torch.equal(found, fine.batch_indexed.div(steps, rounding_mode="floor").int())
    with pytest.raises(ValueError, match="have no parent"):
        parent_rows(fine, make_voxels((1, 0, 0, 0)).batched_coordinates, (2, 2, 2))
