"""Intervals hold what they say, whatever the distribution."""

from __future__ import annotations

import statistics
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench.estimate import exact, median_of, quantiles_of, slope_of

VALUES = st.floats(-1e6, 1e6)
laws = settings(derandomize=True, max_examples=50, deadline=None)


@laws
@given(st.lists(VALUES, min_size=1, max_size=60))
def test_the_interval_is_made_of_samples_and_holds_the_median(samples: list[float]) -> None:
    estimate = median_of(samples)

    assert estimate.value == statistics.median(samples)
    assert estimate.low <= estimate.value <= estimate.high
    assert {estimate.low, estimate.high} <= set(samples)
    assert estimate.samples == len(samples)


@pytest.mark.parametrize("count", [2, 3, 5, 6, 9, 12])
def test_the_confidence_is_the_share_of_all_samples_whose_interval_holds_the_median(
    count: int,
) -> None:
    # Below or above the true median 0, each with probability 1/2: every outcome, once.
    outcomes = [
        [sign * (index + 1.0) for index, sign in enumerate(signs)]
        for signs in product((-1, 1), repeat=count)
    ]
    estimates = [median_of(samples) for samples in outcomes]
    held = sum(estimate.low <= 0 <= estimate.high for estimate in estimates)

    assert held / len(outcomes) == estimates[0].confidence


def test_six_samples_reach_95_percent_with_their_range_and_nine_need_less() -> None:
    assert [median_of(range(n)).confidence >= 0.95 for n in (1, 2, 5, 6, 9, 2000)] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    six, nine = median_of(range(6)), median_of(range(9))
    assert (six.low, six.high) == (0, 5)
    assert (nine.low, nine.high) == (1, 7)


def test_one_sample_says_nothing_about_itself_and_a_count_everything() -> None:
    assert median_of([3.0]).confidence == 0
    assert exact(3.0).confidence == 1


@laws
@given(
    st.lists(VALUES, min_size=2, max_size=12),
    st.floats(-100, 100),
    st.floats(-100, 100),
)
def test_a_line_has_its_slope(noise: list[float], slope: float, start: float) -> None:
    x = list(map(float, range(len(noise))))

    estimate = slope_of(x, [start + slope * value for value in x])

    assert estimate.low == pytest.approx(slope, abs=1e-9)
    assert estimate.high == pytest.approx(slope, abs=1e-9)


@laws
@given(st.lists(VALUES, min_size=2, max_size=12))
def test_a_slope_is_the_median_of_all_pairs(y: list[float]) -> None:
    pairs = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(enumerate(y), 2)]

    estimate = slope_of(range(len(y)), y)

    assert estimate.value == statistics.median(pairs)
    assert estimate.low <= estimate.value <= estimate.high


def test_one_burst_does_not_bend_a_slope() -> None:
    y = [0.0] * 40
    y[20] = 1e9

    assert slope_of(range(40), y).value == 0
    assert slope_of(range(40), y).high == 0


def test_quantiles_are_in_order() -> None:
    assert quantiles_of([1.0]) == {"p05": 1, "p25": 1, "p50": 1, "p75": 1, "p95": 1}
    assert quantiles_of(range(101)) == {"p05": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}


@pytest.mark.parametrize(("x", "y"), [([1], [1]), ([1, 1], [1, 2]), ([1, 2], [1])])
def test_a_slope_needs_points(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match="two or more points with different x"):
        slope_of(x, y)


def test_an_estimate_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="at least one sample, got none"):
        median_of([])
