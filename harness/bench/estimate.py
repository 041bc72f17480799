"""Figures with an interval, from samples, without assuming how the samples are distributed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import comb, sqrt

CONFIDENCE = Fraction(95, 100)
"""What intervals aim at; few samples reach less, and say so."""


@dataclass(frozen=True)
class Estimate:
    """A figure and an interval that holds it.

    Args:
        value: the figure.
        low: lower end of its interval.
        high: upper end.
        confidence: how likely such an interval holds the true figure: 1 for a figure that is
            counted, 0 for a single sample.
        samples: how many samples it comes from.
    """

    value: float
    low: float
    high: float
    confidence: float
    samples: int


def exact(value: float) -> Estimate:
    """Return a figure that is counted, not sampled."""
    return Estimate(value, value, value, 1.0, 1)


def median_of(samples: Sequence[float]) -> Estimate:
    """Return the median of independent samples, between two order statistics.

    The number of samples below the true median is binomial with probability 1/2, whatever their
    distribution; the interval is the shortest symmetric pair of order statistics that holds it with
    at least 95 % (David and Nagaraja, "Order Statistics", 3rd ed., section 7.1). Fewer than six
    samples do not reach that: then it is their range.

    Args:
        samples: at least one.

    Raises:
        ValueError: there is none.
    """
    if not samples:
        raise ValueError("An estimate needs at least one sample, got none.")
    ordered, count = sorted(samples), len(samples)
    rank, outside = 0, 0
    # outside / 2**count: how likely fewer than `rank + 1` samples lie below the median.
    for below in range((count - 1) // 2 + 1):
        more = outside + comb(count, below)
        if below and 2 * more > (1 - CONFIDENCE) * 2**count:
            break
        rank, outside = below, more
    return Estimate(
        statistics.median(ordered),
        ordered[rank],
        ordered[count - 1 - rank],
        1 - 2 * outside / 2**count if count > 1 else 0.0,
        count,
    )


def slope_of(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Return the Theil-Sen slope of y over x: the median of the slopes between all pairs of points.

    Its interval is the one of P. K. Sen, "Estimates of the regression coefficient based on
    Kendall's tau", Journal of the American Statistical Association 63, 1968, in the normal
    approximation.

    Args:
        x: at least two values, all different.
        y: as many values.

    Raises:
        ValueError: there are fewer than two points, or two have the same x.
    """
    if len(x) != len(y) or len(x) < 2 or len(set(x)) < len(x):
        raise ValueError(
            f"A slope needs two or more points with different x, got x={list(x)!r} and "
            f"{len(y)} values of y."
        )
    points = list(zip(x, y, strict=True))
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    n, pairs = len(points), len(slopes)
    spread = statistics.NormalDist().inv_cdf(float(1 + CONFIDENCE) / 2) * sqrt(
        n * (n - 1) * (2 * n + 5) / 18
    )
    low = max(0, round((pairs - spread) / 2) - 1)
    confidence = float(CONFIDENCE) if spread < pairs else 1 - 2.0 ** (1 - n)
    return Estimate(statistics.median(slopes), slopes[low], slopes[-1 - low], confidence, n)


def quantiles_of(samples: Sequence[float]) -> dict[str, float]:
    """Return the 5th, 25th, 50th, 75th and 95th percentile of samples."""
    if len(samples) == 1:
        return dict.fromkeys(("p05", "p25", "p50", "p75", "p95"), samples[0])
    cuts = statistics.quantiles(samples, n=20, method="inclusive")
    return {f"p{5 * (i + 1):02d}": cuts[i] for i in (0, 4, 9, 14, 18)}
