"""Times of two calls, in interleaved pairs.

The two sides of a pair run back to back and take turns in going first, so that what slows the
machine for a while slows both.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from harness.bench.benchmark import Measurement
from harness.bench.estimate import median_of, quantiles_of


class Pair(NamedTuple):
    """Seconds of the two sides of a pair."""

    judged: float
    reference: float


def time_pairs(
    judged: Callable[[], object],
    reference: Callable[[], object],
    pairs: int,
    *,
    warm_up: int,
    seconds: Callable[[Callable[[], Any]], float] | None = None,
) -> list[Pair]:
    """Time two calls in interleaved pairs, while Python's cycle collector rests.

    Args:
        judged: one side.
        reference: the other.
        pairs: how many pairs to time, at least one.
        warm_up: calls of each side before anything is counted.
        seconds: makes a call and gives its seconds; by the clock of this process if None.

    Raises:
        ValueError: there is no pair to time.
    """
    if pairs < 1:
        raise ValueError(f"A figure needs at least one sample, got {pairs}.")
    for _ in range(warm_up):
        judged()
        reference()
    clock = seconds or seconds_of
    times = []
    with no_collection():
        for index in range(pairs):
            if index % 2:
                first, second = clock(judged), clock(reference)
            else:
                second, first = clock(reference), clock(judged)
            times.append(Pair(first, second))
    return times


def seconds_of(call: Callable[[], Any]) -> float:
    """Make a call; return how long it takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python's cycle collector from running inside, after one collection."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use a number of threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_ratio(rounds: Sequence[Sequence[Pair]], **details: Any) -> Measurement:
    """Return how much longer the judged side takes: one sample for each round.

    Args:
        rounds: pairs of each round. A round is one sample, the median of the ratios of its pairs:
            pairs of one round share what differs between rounds, such as where memory lies.
        details: what else to report.
    """
    ratios = [[pair.judged / pair.reference for pair in pairs] for pairs in rounds]
    return _measured(ratios, rounds, details)


def rate_ratio(rounds: Sequence[Sequence[Pair]], **details: Any) -> Measurement:
    """Return how many times as fast the judged side is; as `time_ratio` otherwise."""
    ratios = [[pair.reference / pair.judged for pair in pairs] for pairs in rounds]
    return _measured(ratios, rounds, details)


def _measured(
    ratios: list[list[float]], rounds: Sequence[Sequence[Pair]], details: dict[str, Any]
) -> Measurement:
    every = [pair for pairs in rounds for pair in pairs]
    return Measurement(
        median_of(list(map(statistics.median, ratios))),
        {
            "judged_seconds": statistics.median(pair.judged for pair in every),
            "reference_seconds": statistics.median(pair.reference for pair in every),
            "pairs": len(every),
            "ratios": quantiles_of([ratio for round_ in ratios for ratio in round_]),
            **details,
        },
    )
