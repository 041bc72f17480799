"""`ckpt-lab bench`: its documents, its files and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.bench import catalogue, command
from harness.bench.benchmark import Benchmark, Measurement, NotMeasurableError
from harness.bench.estimate import median_of
from harness.bench.results import read_document
from harness.cli import app

ROW = {
    "name",
    "group",
    "unit",
    "doc",
    "at_most",
    "at_least",
    "verdict",
    "seconds",
    "value",
    "low",
    "high",
    "confidence",
    "samples",
    "details",
}


def interrupted(samples: int) -> Measurement:
    raise KeyboardInterrupt


def impossible(samples: int) -> Measurement:
    raise NotMeasurableError("it needs what is not here")


def made(name: str, run: Any, **goal: float) -> Benchmark:
    return Benchmark(name=name, group="quick", unit="s", doc="made up", run=run, samples=9, **goal)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmarks = (
        made("works", lambda n: Measurement(median_of(range(n)), {"n": n}), at_most=20.0),
        made("impossible", impossible, at_least=1.0),
        made("interrupted", interrupted),
    )
    monkeypatch.setattr(catalogue, "BENCHMARKS", benchmarks)
    monkeypatch.setattr(command, "BENCHMARKS", benchmarks)


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", *arguments])


@pytest.mark.parametrize("json_option", [["--json"], ["--json", "-"]])
def test_json_goes_to_standard_output_alone(made_up: None, json_option: list[str]) -> None:
    out = bench("works", *json_option)

    document = json.loads(out.stdout)
    assert out.exit_code == 0
    assert document.keys() == {"schema", "started", "machine", "benchmarks"}
    assert document["machine"].keys() >= {"processor", "cores", "torch", "python", "threads"}
    (row,) = document["benchmarks"]
    assert row.keys() == ROW
    assert (row["value"], row["low"], row["high"], row["samples"]) == (4, 1, 7, 9)
    assert (row["verdict"], row["at_most"], row["at_least"]) == ("pass", 20, None)
    assert row["details"] == {"n": 9}


def test_a_name_after_a_bare_json_option_is_a_name(made_up: None) -> None:
    out = bench("--json", "works", "--samples", "36")

    (row,) = json.loads(out.stdout)["benchmarks"]
    assert (row["name"], row["samples"], row["verdict"]) == ("works", 36, "undecided")


def test_json_into_a_file_leaves_the_table_to_standard_output(
    made_up: None, tmp_path: Path
) -> None:
    out = bench("works", "--json", str(tmp_path / "figures.json"))

    (row,) = read_document(tmp_path / "figures.json")["benchmarks"]
    assert row["name"] == "works"
    assert "at most 20" in out.stdout and "pass" in out.stdout


def test_a_figure_that_cannot_be_measured_stops_no_other_and_ends_with_3(made_up: None) -> None:
    out = bench("impossible", "works", "--json")

    bad, good = json.loads(out.stdout)["benchmarks"]
    assert (bad["verdict"], bad["error"]) == ("error", "it needs what is not here")
    assert good["verdict"] == "pass"
    assert out.exit_code == 3


def test_an_interrupted_run_writes_what_it_has(made_up: None, tmp_path: Path) -> None:
    out = bench("works", "interrupted", "--json", str(tmp_path / "figures.json"))

    assert out.exit_code == 130
    assert len(read_document(tmp_path / "figures.json")["benchmarks"]) == 1


def test_the_list_has_one_line_for_each(made_up: None) -> None:
    out = bench("--list")

    heading, *lines = (line.split() for line in out.stdout.splitlines())
    assert heading == "benchmark group goal what it measures".split()
    assert [line[:5] for line in lines] == [
        ["works", "quick", "at", "most", "20"],
        ["impossible", "quick", "at", "least", "1"],
        ["interrupted", "quick", "none", "s", "made"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "no benchmark 'nope'"),
        (["--group", "slow"], "no group 'slow'"),
        (["--samples", "0"], "--samples"),
    ],
)
def test_bad_values_exit_with_2(arguments: list[str], message: str) -> None:
    out = bench(*arguments)

    assert out.exit_code == 2
    assert message in out.output


@pytest.mark.parametrize("text", ["no json", "[]", '{"schema": 0, "benchmarks": []}'])
def test_other_documents_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)

    with pytest.raises(ValueError, match=r"x\.json is no "):
        read_document(tmp_path / "x.json")
