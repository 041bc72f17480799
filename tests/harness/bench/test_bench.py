"""Benchmarks measure what they say; no figure is asserted."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

from harness.bench.command import select
from harness.bench.overhead import OVERHEADS
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
    assert len({figure.name for figure in OVERHEADS}) == len(OVERHEADS)
    ratio = select(["boundary-2-batchnorm"])[0].measure(pairs=10)
    assert ratio.judged > 0 and ratio.reference > 0


def test_the_command_prints_json() -> None:
    out = CliRunner().invoke(app, ["bench", "boundary-disabled", "--pairs", "10", "--json"])

    assert out.exit_code == 0
    (row,) = json.loads(out.stdout)["benchmarks"]
    assert row["name"] == "boundary-disabled"
    assert row["low"] <= row["median"] <= row["high"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nope"], "Unknown benchmark 'nope'"), (["--pairs", "3"], "at least 10 pairs, got 3")],
)
def test_bad_values_exit_with_2(arguments: list[str], message: str) -> None:
    out = CliRunner().invoke(app, ["bench", *arguments])

    assert out.exit_code == 2
    assert message in out.output
