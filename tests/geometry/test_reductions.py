"""Reductions of segments."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from wcn_ckpt.geometry.reductions import Reduction, random_member, segment_reduce

SEGMENTS = torch.tensor([2, 0, 2, 2, 0])


@pytest.mark.parametrize("reduction", get_args(Reduction))
def test_segments_without_rows_are_zero(reduction: Reduction) -> None:
    rows = torch.randn(5, 3) + 5

    reduced = segment_reduce(rows, SEGMENTS, 4, reduction)

    assert reduced.shape == (4, 3)
    assert reduced[[1, 3]].count_nonzero() == 0
    assert segment_reduce(rows[:0], SEGMENTS[:0], 4, reduction).count_nonzero() == 0


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_a_tie_sends_its_gradient_to_one_row(reduction: Reduction) -> None:
    rows = torch.ones(5, 2, requires_grad=True)

    (gradient,) = torch.autograd.grad(segment_reduce(rows, SEGMENTS, 3, reduction).sum(), rows)

    assert gradient.tolist() == [[1, 1], [1, 1], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_nan_is_not_lost(reduction: Reduction) -> None:
    rows = torch.tensor([[1.0], [2.0], [math.nan], [0.0], [3.0]])

    assert segment_reduce(rows, SEGMENTS, 3, reduction)[2].isnan()


@pytest.mark.parametrize("reduction", ["mean", "sum", "var", "std", "mul"])
def test_half_precision_is_accumulated_in_float32(reduction: Reduction) -> None:
    rows = (torch.randn(3000, 1) * 0.01 + 1).half()
    segments = torch.zeros(3000, dtype=torch.int64)

    reduced = segment_reduce(rows, segments, 1, reduction)

    exact = segment_reduce(rows.double(), segments, 1, reduction)
    assert reduced.dtype == torch.float16
    torch.testing.assert_close(reduced, exact.half())


def test_integers_have_a_maximum() -> None:
    rows = torch.tensor([[-3], [-1], [-2], [-7], [-5]])

    assert segment_reduce(rows, SEGMENTS, 3, "max").flatten().tolist() == [-1, 0, -2]


@pytest.mark.parametrize("reduction", ["max", "min", "mul", "var", "std", "mean", "sum"])
def test_gradients(reduction: Reduction) -> None:
    rows = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradcheck(lambda x: segment_reduce(x, SEGMENTS, 4, reduction), rows)


def test_random_draws_whole_rows_uniformly() -> None:
    torch.manual_seed(0)
    rows = torch.arange(5.0)[:, None].expand(5, 3)

    drawn = torch.stack([segment_reduce(rows, SEGMENTS, 3, "random") for _ in range(300)])

    assert (drawn == drawn[..., :1]).all()
    counts = drawn[:, 2, 0].long().bincount(minlength=5)
    assert counts[[1, 4]].sum() == 0
    assert counts[[0, 2, 3]].min() > 60


def test_a_generator_makes_draws_repeatable() -> None:
    draws = [random_member(SEGMENTS, 3, torch.Generator().manual_seed(3)) for _ in range(2)]

    assert torch.equal(*draws)


@pytest.mark.parametrize("reduction", ["var", "std"])
def test_refuses_the_spread_of_booleans(reduction: Reduction) -> None:
    with pytest.raises(TypeError, match=f"booleans have no '{reduction}'"):
        segment_reduce(torch.zeros(5, 1, dtype=torch.bool), SEGMENTS, 3, reduction)


def test_refuses_other_names() -> None:
    with pytest.raises(ValueError, match="'median'"):
        segment_reduce(torch.zeros(5, 1), SEGMENTS, 3, "median")  # type: ignore[arg-type]  # tested
