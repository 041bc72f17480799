"""The figures of the command, and how a goal is judged."""

from __future__ import annotations

import pytest

from harness.bench.benchmark import Benchmark, Measurement, Verdict
from harness.bench.catalogue import BENCHMARKS, choose
from harness.bench.estimate import Estimate, exact

GOALS = {
    "boundary-disabled": 1.01,
    "boundary-no-state": 1.04,
    "boundary-2-batchnorm": 1.04,
    "boundary-24-batchnorm": 1.03,
    "own-code-minkunet18": 0.005,
    "import-time": 60,
    "lab-over-bare-loop": 0.90,
    "lab-over-torch-class": 1.0,
    "lab-over-spawning": 150,
    "smoke-from-cold": 60,
    "test-suite": 480,
    "saved-over-limit-minkunet18": 1.05,
    "saved-over-limit-ptv3": 1.05,
    "saved-over-limit-spaceformer": 1.05,
    "saved-over-ordinary-minkunet18": 0.50,
    "saved-over-ordinary-ptv3": 0.35,
    "saved-over-ordinary-spaceformer": 0.35,
    "saved-inside-over-inputs-minkunet18": 1.05,
    "saved-inside-over-inputs-ptv3": 1.05,
    "saved-inside-over-inputs-spaceformer": 1.05,
    "sparse-convolution": 2.0,
    "growth-exponent": 1.1,
    "peak-memory-200k": 8.0,
    "lab-memory-growth": 5.0,
}


def made(**goal: float) -> Benchmark:
    return Benchmark(
        name="made",
        group="quick",
        unit="ratio",
        doc="made up",
        run=lambda samples: Measurement(exact(1.0)),
        samples=1,
        **goal,
    )


def test_every_figure_with_a_goal_is_there_under_its_own_name() -> None:
    goals = {b.name: b.at_most or b.at_least for b in BENCHMARKS if b.at_most or b.at_least}

    assert goals == GOALS
    assert len({b.name for b in BENCHMARKS}) == len(BENCHMARKS)


def test_rates_are_wanted_large_and_all_else_small() -> None:
    large = {b.name for b in BENCHMARKS if b.at_least is not None}

    assert large == {"lab-over-bare-loop", "lab-over-torch-class", "lab-over-spawning"}


@pytest.mark.parametrize(
    ("goal", "low", "high", "verdict"),
    [
        ({"at_most": 2.0}, 1.0, 2.0, "pass"),
        ({"at_most": 2.0}, 1.9, 2.1, "undecided"),
        ({"at_most": 2.0}, 2.1, 2.2, "fail"),
        ({"at_least": 2.0}, 2.0, 3.0, "pass"),
        ({"at_least": 2.0}, 1.9, 2.1, "undecided"),
        ({"at_least": 2.0}, 1.0, 1.9, "fail"),
        ({}, 1.0, 2.0, "no goal"),
    ],
)
def test_the_whole_interval_decides(
    goal: dict[str, float], low: float, high: float, verdict: Verdict
) -> None:
    assert made(**goal).verdict(Estimate((low + high) / 2, low, high, 0.95, 9)) == verdict


def test_a_benchmark_has_one_goal() -> None:
    with pytest.raises(ValueError, match="one goal"):
        made(at_most=1.0, at_least=1.0)


def test_the_quick_group_is_the_default() -> None:
    assert choose([], None) == choose([], "quick")
    assert {b.name for g in ("quick", "long") for b in choose([], g)} == {
        b.name for b in BENCHMARKS
    }


def test_names_are_run_once_in_the_order_given() -> None:
    names = [b.name for b in choose(["import-time", "boundary-disabled", "import-time"], None)]

    assert names == ["import-time", "boundary-disabled"]


@pytest.mark.parametrize(
    ("names", "group", "message"),
    [
        (["nope"], None, "no benchmark 'nope'; valid benchmarks: boundary-disabled, "),
        ([], "slow", "no group 'slow'; valid groups: quick, long"),
        (["import-time"], "quick", "names or a group, not both"),
    ],
)
def test_what_does_not_exist_is_refused(names: list[str], group: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(names, group)
