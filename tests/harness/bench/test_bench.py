"""Benchmarks measure what they say; no figure is asserted."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

from harness.bench.command import FIGURES, select
from harness.bench.lab_rate import LabRate
from harness.bench.paired import ratio_of
from harness.cli import app


def test_a_ratio_orders_its_interval_and_sees_a_slower_side() -> None:
    ratio = ratio_of(lambda: time.sleep(0.002), lambda: time.sleep(0.0005), pairs=12)

    assert ratio.low <= ratio.median <= ratio.high
    assert ratio.median > 1
    assert ratio.pairs == 12


def test_too_few_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 10 pairs, got 3"):
        ratio_of(lambda: None, lambda: None, pairs=3)


def test_every_figure_has_its_own_name_and_runs() -> None:
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    ratio = select(["boundary-2-batchnorm"])[0].measure(pairs=10)
    assert ratio.judged > 0 and ratio.reference > 0


def test_the_command_prints_json() -> None:
    out = CliRunner().invoke(app, ["bench", "boundary-disabled", "--pairs", "10", "--json"])

    assert out.exit_code == 0
    (row,) = json.loads(out.stdout)["benchmarks"]
    assert row["name"] == "boundary-disabled"
    assert row["low"] <= row["median"] <= row["high"]


def test_the_rate_of_the_lab_is_a_figure_of_the_command() -> None:
    out = CliRunner().invoke(app, ["bench", "lab-rate", "--pairs", "2", "--json"])

    assert out.exit_code == 0, out.output
    (row,) = json.loads(out.stdout)["benchmarks"]
    assert (row["name"], row["pairs"], row["limit"]) == ("lab-rate", 2, 1 / 0.7)
    assert row["low"] <= row["median"] <= row["high"]


def test_a_figure_on_ranks_times_fewer_pairs_than_others() -> None:
    assert LabRate(most=1).measure(2000).pairs == 1
    with pytest.raises(ValueError, match="at least one pair, got 0"):
        LabRate().measure(0)


def test_ranks_that_do_not_start_end_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")

    out = CliRunner().invoke(app, ["bench", "lab-rate", "--pairs", "1"])

    assert out.exit_code == 3
    assert "no figure" in out.output and "no-such-interface" in out.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nope"], "Unknown benchmark 'nope'"), (["--pairs", "3"], "at least 10 pairs, got 3")],
)
def test_bad_values_exit_with_2(arguments: list[str], message: str) -> None:
    out = CliRunner().invoke(app, ["bench", *arguments])

    assert out.exit_code == 2
    assert message in out.output
