"""Each benchmark, at a tiny size, gives a figure with an interval; no figure is asserted."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable

import pytest
from torch import nn

from harness.bench.benchmark import Measurement, NotMeasurableError
from harness.bench.convolution import convolution
from harness.bench.growth import growth_exponent, peak_of_step
from harness.bench.imports import import_time
from harness.bench.lab_cases import tiny_cases
from harness.bench.lab_rate import over_bare_loop, over_torch_class
from harness.bench.night import memory_over_a_night
from harness.bench.overhead import overhead
from harness.bench.own_share import own_share
from harness.bench.spawned import spawned_seconds
from harness.bench.timed_commands import smoke
from harness.bench.timed_commands import test_suite as time_test_suite

SMALL: dict[str, Callable[[], Measurement]] = {
    "overhead": lambda: overhead(2, pairs=2, guard=False),
    "no state": lambda: overhead(1, pairs=1, norm=nn.LayerNorm),
    "disabled": lambda: overhead(1, pairs=1, enable=False),
    "own share": lambda: own_share(1, voxels=600),
    "imports": lambda: import_time(1),
    "bare loop": lambda: over_bare_loop(1, most=2),
    "smoke": lambda: smoke(1, "--subject", "readme", "--axis", "wrapper=none"),
    "tests": lambda: time_test_suite(1, "-n0", "tests/harness/bench/test_estimate.py"),
    "convolution": lambda: convolution(1, voxels=200),
    "growth": lambda: growth_exponent(1, voxels=(600, 900), clouds=1),
    "peak": lambda: peak_of_step(1, voxels=600, clouds=1),
    "night": lambda: memory_over_a_night(20, cases=20),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_benchmark_gives_a_figure(name: str) -> None:
    measured = SMALL[name]()

    estimate = measured.estimate
    assert estimate.low <= estimate.value <= estimate.high
    assert 0 <= estimate.confidence <= 1
    assert json.loads(json.dumps(dict(measured.details)))


def test_a_case_runs_in_ranks_of_its_own() -> None:
    assert spawned_seconds(tiny_cases()[0]) > 0


@pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None,
    reason="PyTorch's persistent test class needs the package expecttest",
)
def test_the_same_cases_run_in_the_test_class_of_torch() -> None:
    assert over_torch_class(1, most=1).details["cases"] == 1


@pytest.mark.parametrize(
    "measure",
    [overhead, own_share, import_time, convolution, growth_exponent, smoke, over_bare_loop],
)
def test_no_sample_is_refused(measure: Callable[[int], Measurement]) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        measure(0)


def test_a_night_is_looked_at_often_enough() -> None:
    with pytest.raises(ValueError, match="20 times or more.* got 19"):
        memory_over_a_night(19)


def test_a_command_that_fails_is_no_figure() -> None:
    with pytest.raises(NotMeasurableError, match="ended with 2"):
        smoke(1, "--subject", "nope")


def test_the_tiny_cases_are_ddp() -> None:
    cases = tiny_cases()

    assert len(cases) > 10
    assert {case.assignment["wrapper"] for case in cases} == {"ddp"}
