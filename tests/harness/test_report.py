from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from harness.findings import Finding
from harness.report.junit import write_junit
from harness.report.summary import write_summary
from harness.report.tally import summary_line, tabulate
from harness.report.terminal import finding_text, show_findings, show_progress, show_result
from harness.row import Outcome, Row

DOUBLE = Finding(
    rank=1,
    point="backward[0]",
    path="buffers/norm.num_batches_tracked",
    expected=1,
    got=2,
    max_abs=1.0,
    cause="BatchNorm1d 'norm' was updated twice",
    remedy="use the mixin | or not",
)
RAISED = Finding(
    rank=0,
    point="forward[0]",
    path="exception",
    expected="no exception",
    got="ValueError: [bold]no\x00[/bold]\nTraceback | line",
    cause="it raised",
    remedy="read it",
)


def row(case: str, outcome: Outcome = "equal", *findings: Finding, momentum: object = 0.1) -> Row:
    return Row(
        case=case,
        subject=case.split(",")[0],
        axes={"bn_momentum": momentum},  # type: ignore[dict-item]  # also odd values, below
        seed=0,
        arm="torch_checkpoint",
        ranks=2,
        outcome=outcome,
        findings=findings,
        seconds=0.5,
    )


ROWS = [
    row("basic,bn_momentum=none", momentum=None),
    row("basic", "differs", DOUBLE),
    row("other", "error", RAISED, DOUBLE),
]


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=200, highlight=False, markup=False, soft_wrap=True)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_table_counts_per_axis_value_and_subject() -> None:
    table = tabulate(ROWS)

    assert table.subjects == ("basic", "other")
    assert [(label, [cell.text for cell in cells]) for label, cells in table.lines] == [
        ("bn_momentum=0.1", ["1/1 fail", "1/1 fail"]),
        ("bn_momentum=none", ["1 ok", ""]),
    ]


def test_an_unknown_value_is_counted_too() -> None:
    assert [label for label, _ in tabulate([row("basic", momentum="odd")]).lines] == [
        "bn_momentum=odd"
    ]


def test_a_summary_line_counts_outcomes() -> None:
    assert summary_line(ROWS) == "3 cases: 1 equal, 1 differs, 1 error"
    assert summary_line(ROWS[:1]) == "1 case: 1 equal"
    assert summary_line([]) == "0 cases: nothing ran"


def test_a_finding_says_where_what_why_and_what_to_do() -> None:
    text = finding_text(DOUBLE)

    assert "rank 1 · backward[0] · buffers/norm.num_batches_tracked · expected 1 · got 2" in text
    assert "largest difference 1, allowed 0 (bitwise)" in text
    assert "cause: BatchNorm1d 'norm' was updated twice" in text
    assert "remedy: use the mixin" in text


def test_tracebacks_are_shown_only_when_everything_is() -> None:
    assert "Traceback" not in finding_text(RAISED)
    assert "Traceback" in finding_text(RAISED, everything=True)


def test_the_terminal_shows_failing_cases_with_their_replay_command() -> None:
    console = plain_console()
    show_result(ROWS, console)

    text = printed(console)
    assert "differs basic\n" in text
    assert "ckpt-lab replay other --arm torch_checkpoint --seed 0 --ranks 2" in text
    assert "[bold]no" in text, "what a rank said is no markup"
    assert text.endswith("3 cases: 1 equal, 1 differs, 1 error\n")


def test_repeated_causes_are_shown_once() -> None:
    console = plain_console()
    show_findings(row("basic", "differs", DOUBLE, DOUBLE, DOUBLE), console)

    assert printed(console).count("cause:") == 1
    assert "2 more findings" in printed(console)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_passes_every_row_on(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)

    def rows() -> Iterator[Row]:
        yield from ROWS

    assert list(show_progress(rows(), 3, console)) == ROWS
    if not terminal:
        assert "1/3 cases, 0 not ok" in printed(console)


def test_the_summary_is_a_markdown_table_with_findings(tmp_path: Path) -> None:
    path = write_summary(tmp_path, ROWS, {"suite": "smoke", "seed": 0})

    text = path.read_text()
    assert text.startswith("# ckpt-lab: 3 cases: 1 equal, 1 differs, 1 error\n")
    assert "- suite: smoke\n- seed: 0\n" in text
    assert "| bn_momentum=0.1 | 1/1 fail | 1/1 fail |\n" in text
    assert "### differs: `basic`" in text
    assert "use the mixin \\| or not" in text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.M)
    for table in tables:
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_junit_has_one_case_per_row_and_survives_odd_characters(tmp_path: Path) -> None:
    suite = ElementTree.parse(write_junit(tmp_path, ROWS)).getroot()

    assert suite.attrib["tests"] == "3"
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("1", "1")
    passed, failed, raised = suite
    assert list(passed) == []
    assert failed[0].tag == "failure" and failed[0].attrib["type"] == "differs"
    assert raised[0].tag == "error" and "Traceback" in (raised[0].text or "")
    assert "replay: ckpt-lab replay other" in (raised[0].text or "")


def test_a_summary_of_many_failing_cases_lists_the_last_ones_only(tmp_path: Path) -> None:
    rows = [row(f"basic,number={number}", "differs", DOUBLE) for number in range(60)]

    text = write_summary(tmp_path, rows, {}).read_text()

    assert text.count("| rank | point |") == 50
    assert "### 10 more cases\n" in text
    assert "- differs: `basic,number=59`" in text


def test_junit_tells_seeds_apart_where_there_are_several(tmp_path: Path) -> None:
    write_junit(tmp_path, [row("basic"), replace(row("basic"), seed=1)])

    cases = ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase")
    assert [case.get("name") for case in cases] == ["basic seed 0", "basic seed 1"]


def test_subjects_that_do_not_fit_beside_each_other_stand_below(tmp_path: Path) -> None:
    names = [f"subject-{number:02}" for number in range(12)]
    console = Console(file=io.StringIO(), width=80, highlight=False, markup=False, soft_wrap=True)

    show_result([row(name) for name in names], console)

    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    headings = [line.split()[1:] for line in lines if line.startswith("cases ")]
    assert len(headings) > 1
    assert [name for heading in headings for name in heading] == names
    assert max(map(len, lines)) <= 80
    assert sum("bn_momentum=0.1" in line for line in lines) == len(headings)
