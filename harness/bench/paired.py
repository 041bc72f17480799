"""Ratios of two timed calls, from interleaved pairs.

The two sides of a pair run back to back and take turns in going first, so that what slows the
machine for a while slows both. The median of the pairs' ratios is robust against single bursts; its
confidence interval comes from order statistics and assumes no distribution.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

WARM_UP = 50
"""Calls of each side before anything is counted."""


@dataclass(frozen=True)
class Ratio:
    """How much longer the judged side takes than the reference.

    Args:
        median: median of the ratios of the pairs.
        low: lower end of the 95 % confidence interval of the median.
        high: upper end.
        judged: median seconds of the judged side.
        reference: median seconds of the reference.
        pairs: how many pairs were timed.
    """

    median: float
    low: float
    high: float
    judged: float
    reference: float
    pairs: int


def ratio_of(judged: Callable[[], object], reference: Callable[[], object], pairs: int) -> Ratio:
    """Time two calls in interleaved pairs.

    Args:
        judged: one side.
        reference: the other.
        pairs: how many pairs to time, at least 10.

    Raises:
        ValueError: there are too few pairs for an interval.
    """
    if pairs < 10:
        raise ValueError(f"A confidence interval needs at least 10 pairs, got {pairs}.")
    for _ in range(WARM_UP):
        judged()
        reference()
    times: tuple[list[float], list[float]] = ([], [])
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for index in range(pairs):
            order = (0, 1) if index % 2 else (1, 0)
            for side in order:
                times[side].append(_seconds((judged, reference)[side]))
    finally:
        if was_enabled:
            gc.enable()
    ratios = sorted(a / b for a, b in zip(*times, strict=True))
    half_width = 1.96 * sqrt(pairs) / 2
    return Ratio(
        statistics.median(ratios),
        ratios[max(0, int(pairs / 2 - half_width))],
        ratios[min(pairs - 1, int(pairs / 2 + half_width) + 1)],
        statistics.median(times[0]),
        statistics.median(times[1]),
        pairs,
    )


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
