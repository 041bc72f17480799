"""Each benchmark, at a tiny size, gives a figure with an interval; no figure is asserted."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.bench import growth
from harness.bench.benchmark import Measurement, NotMeasurableError
from harness.bench.convolution import convolution
from harness.bench.growth import growth_exponent
from harness.bench.imports import import_time
from harness.bench.lab_cases import jobs_of, tiny_cases
from harness.bench.lab_rate import over_bare_loop
from harness.bench.night import memory_over_a_night
from harness.bench.overhead import overhead
from harness.bench.own_share import own_share
from harness.bench.spawned import run_alone
from harness.bench.timed_commands import smoke
from harness.bench.timed_commands import test_suite as time_test_suite
from harness.bench.torch_class import TorchRanks
from harness.ranks import RankPool

SMALL: dict[str, Callable[[], Measurement]] = {
    "overhead": lambda: overhead(2, pairs=2, guard=False),
    "no state": lambda: overhead(1, pairs=1, norm=nn.LayerNorm),
    "disabled": lambda: overhead(1, pairs=1, enable=False),
    "own share": lambda: own_share(1, voxels=600),
    "imports": lambda: import_time(1),
    "tests": lambda: time_test_suite(1, "-n0", "tests/harness/bench/test_estimate.py"),
    "convolution": lambda: convolution(1, voxels=200),
    "growth": lambda: growth_exponent(1, voxels=(600, 900), clouds=1),
}


def check(measured: Measurement) -> None:
    estimate = measured.estimate
    assert estimate.low <= estimate.value <= estimate.high
    assert 0 <= estimate.confidence <= 1
    assert json.loads(json.dumps(dict(measured.details)))


@pytest.mark.parametrize("name", SMALL)
def test_a_small_benchmark_gives_a_figure(name: str) -> None:
    check(SMALL[name]())


def test_the_lab_is_measured_in_ranks_that_stay(rank_pool: RankPool) -> None:
    check(over_bare_loop(1, most=2, ranks=rank_pool))
    check(memory_over_a_night(20, cases=20, ranks=rank_pool))


def test_a_step_tells_the_peak_of_its_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["growth", "600", "1"])

    growth.main()

    seen = json.loads(capsys.readouterr().out)
    assert 0 < seen["peak_before_mib"] <= seen["peak_mib"]
    assert 500 < seen["voxels"] < 700


def test_a_case_runs_in_ranks_of_its_own(tmp_path: Path) -> None:
    threads = torch.get_num_threads()

    run_alone(0, 1, jobs_of(tiny_cases()[:1]), tmp_path)

    assert not torch.distributed.is_initialized()
    torch.set_num_threads(threads)


@pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None,
    reason="PyTorch's persistent test class needs the package expecttest",
)
def test_the_same_cases_run_in_the_test_class_of_torch() -> None:
    with TorchRanks(1) as ranks:
        assert ranks.seconds() > 0


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


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--subject", "nope"), "ended with 2"), (("--help",), r"left no report\.html")],
)
def test_a_command_that_fails_is_no_figure(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(NotMeasurableError, match=message):
        smoke(1, *options)


def test_the_tiny_cases_are_ddp() -> None:
    cases = tiny_cases()

    assert len(cases) > 10
    assert {case.assignment["wrapper"] for case in cases} == {"ddp"}
