"""Pairs take turns, and what is timed is what is compared."""

from __future__ import annotations

import pytest

from harness.bench.paired import Pair, rate_ratio, time_pairs, time_ratio


def test_the_sides_take_turns_in_going_first() -> None:
    order: list[str] = []

    pairs = time_pairs(
        lambda: order.append("judged"),
        lambda: order.append("reference"),
        2,
        warm_up=1,
        seconds=lambda call: call() or float(len(order)),
    )

    assert order == ["judged", "reference", "reference", "judged", "judged", "reference"]
    assert pairs == [Pair(judged=4, reference=3), Pair(judged=5, reference=6)]


def test_a_round_is_one_sample() -> None:
    rounds = [[Pair(2.0, 1.0), Pair(4.0, 1.0), Pair(6.0, 1.0)], [Pair(3.0, 1.0)]]

    ratio, rate = time_ratio(rounds, about="x"), rate_ratio(rounds)

    assert (ratio.estimate.low, ratio.estimate.high) == (3, 4)
    assert ratio.estimate.samples == 2
    assert ratio.details["pairs"] == 4 and ratio.details["about"] == "x"
    assert rate.estimate.high == pytest.approx(1 / 3)
