"""Space-filling curves against their defining bijection."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wcn_ckpt.geometry.space_filling import BITS_PER_AXIS, hilbert_codes, morton_codes

Curve = Callable[..., Tensor]
CURVES: list[Curve] = [morton_codes, hilbert_codes]
LAST = (1 << BITS_PER_AXIS) - 1
STEPS = torch.cat([torch.eye(3, dtype=torch.int64), -torch.eye(3, dtype=torch.int64)])

anywhere = st.integers(0, LAST)
cell = st.tuples(anywhere, anywhere, anywhere)
axes = st.permutations((0, 1, 2))


def cube(side: int) -> Tensor:
    return torch.cartesian_prod(*[torch.arange(side)] * 3)


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("bits", range(5))
def test_a_cube_at_the_origin_is_numbered_without_gaps(curve: Curve, bits: int) -> None:
    side = 1 << bits

    for order in permutations(range(3)):
        codes = curve(cube(side), order)
        assert torch.equal(codes.sort().values, torch.arange(side**3))


@pytest.mark.parametrize("curve", CURVES)
@given(cells=st.lists(cell, min_size=2, unique=True), order=axes)
@settings(derandomize=True, max_examples=30, deadline=None)
def test_no_two_cells_share_a_code(
    curve: Curve, cells: list[tuple[int, ...]], order: list[int]
) -> None:
    codes = curve(torch.tensor(cells), order)

    assert len(codes.unique()) == len(cells)
    assert codes.min() >= 0


@pytest.mark.parametrize("bits", range(1, 5))
def test_hilbert_neighbours_differ_by_one_step(bits: int) -> None:
    cells = cube(1 << bits)

    path = cells[hilbert_codes(cells).argsort()]

    assert (path.diff(dim=0).abs().sum(dim=1) == 1).all()
    assert path[0].tolist() == [0, 0, 0]


@given(place=cell, order=axes)
@settings(derandomize=True, max_examples=100, deadline=None)
def test_hilbert_neighbours_are_beside_each_other_anywhere(
    place: tuple[int, ...], order: list[int]
) -> None:
    here = torch.tensor(place)
    around = here + STEPS
    around = around[((around >= 0) & (around <= LAST)).all(dim=1)]

    code = int(hilbert_codes(here[None], order))
    beside = hilbert_codes(around, order).tolist()

    wanted = [near for near in (code - 1, code + 1) if 0 <= near < 1 << 3 * BITS_PER_AXIS]
    assert all(beside.count(near) == 1 for near in wanted)


@given(place=cell, order=axes)
@settings(derandomize=True, max_examples=50, deadline=None)
def test_morton_interleaves_bits(place: tuple[int, ...], order: list[int]) -> None:
    expected = sum(
        (place[axis] >> bit & 1) << (3 * bit + rank)
        for rank, axis in enumerate(order)
        for bit in range(BITS_PER_AXIS)
    )

    assert int(morton_codes(torch.tensor([place]), order)) == expected


def test_unit_cells_have_codes_one_two_and_four() -> None:
    units = torch.eye(3, dtype=torch.int64)

    assert morton_codes(units).tolist() == [1, 2, 4]
    assert morton_codes(units, (2, 1, 0)).tolist() == [4, 2, 1]


@pytest.mark.parametrize("curve", CURVES)
def test_axes_are_those_of_the_exchanged_coordinates(curve: Curve) -> None:
    cells = torch.randint(0, LAST, (50, 3), generator=torch.Generator().manual_seed(0))

    assert torch.equal(curve(cells, (1, 0, 2)), curve(cells[:, [1, 0, 2]]))


@pytest.mark.parametrize("curve", CURVES)
def test_refuses_what_does_not_fit(curve: Curve) -> None:
    with pytest.raises(ValueError, match="2097153"):
        curve(torch.tensor([[0, LAST + 1, 0]]))
    with pytest.raises(ValueError, match="-1"):
        curve(torch.tensor([[0, 0, -1]]))
    assert curve(torch.zeros(0, 3, dtype=torch.int64)).shape == (0,)
