"""What is printed stays readable on a terminal of 60 or 80 columns."""

from __future__ import annotations

import io
import re

import pytest
from rich.text import Text

from harness.findings import Finding
from harness.report.folding import FoldingConsole, fold
from harness.report.tables import show_table
from harness.report.terminal import show_findings, show_result
from harness.row import Row
from matrix.case import parse_case

CASE = parse_case(
    "basic,bn_momentum=1.0,wrapper=ddp,broadcast_buffers=off,backward=autograd.grad,"
    "accumulation=plain_then_checkpointed,enable=user_context,steps=3"
)
FINDING = Finding(
    rank=0,
    point="backward[0]",
    path="buffers/conv1.1.num_batches_tracked",
    expected=1,
    got=2,
    cause="BatchNorm1d 'conv1.1' was updated twice: the replay ran its update again",
    remedy="checkpoint the block through wcn_ckpt's GradientCheckpointingMixin",
)
STYLES = re.compile(r"\x1b\[[\d;]*m")


def row(subject: str = "basic") -> Row:
    return Row(
        case=CASE.id,
        subject=subject,
        axes=CASE.assignment,
        seed=0,
        arm="torch_checkpoint",
        ranks=2,
        outcome="differs",
        findings=(FINDING,),
    )


def console(width: int, *, terminal: bool = True) -> FoldingConsole:
    return FoldingConsole(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def printed(on: FoldingConsole) -> list[str]:
    assert isinstance(on.file, io.StringIO)
    return STYLES.sub("", on.file.getvalue()).splitlines()


@pytest.mark.parametrize("width", [60, 80])
def test_a_failing_case_is_broken_between_names_alone(width: int) -> None:
    on = console(width)
    show_findings(row(), on)
    lines = printed(on)

    assert lines[0].startswith("differs basic,bn_momentum=1.0,wrapper=ddp,")
    long = [line for line in lines if len(line) > width]
    assert [line.split()[0] for line in long] == ["replay:", "shrink:"], "these are to be copied"
    words = " ".join(lines)
    for name in (*CASE.id.split(","), FINDING.path, "GradientCheckpointingMixin"):
        assert name in words


def test_elsewhere_lines_stay_whole() -> None:
    on = console(60, terminal=False)
    show_findings(row(), on)

    assert printed(on)[0] == f"differs {CASE.id}"


@pytest.mark.parametrize("width", [60, 80])
def test_subjects_that_do_not_fit_stand_in_another_table_or_break_at_a_hyphen(width: int) -> None:
    on = console(width)
    show_result([row("channel-to-space-predicted"), row("sparse-dit-cross")], on)
    lines = printed(on)

    table = lines[: next(n for n, line in enumerate(lines) if line.startswith("differs"))]
    assert max(map(len, table)) <= width
    assert not any("…" in line for line in lines)
    assert any("channel-to-space-" in line for line in table)
    assert sum("predicted" in line for line in table) == 1
    assert sum("bn_momentum=1.0 " in line for line in table) == 2


FAULT = ("restore-skipped-on-exception", "caught but misnamed: must be repeated_update", "", "1")
HEADINGS = ("fault", "result", "note", "cases")


def test_a_table_that_does_not_fit_is_a_list() -> None:
    on = console(48)
    show_table(HEADINGS, [[Text(cell) for cell in FAULT]], on)

    assert printed(on) == [
        "restore-skipped-on-exception",
        "  result: caught but misnamed: must be",
        "      repeated_update",
        "  cases: 1",
    ]


@pytest.mark.parametrize(("width", "terminal"), [(100, True), (60, False)])
def test_a_table_that_fits_or_is_read_by_a_program_is_a_table(width: int, terminal: bool) -> None:
    on = console(width, terminal=terminal)
    show_table(HEADINGS, [[Text(cell) for cell in FAULT]], on)

    heading, *_, line = (text for text in printed(on) if text.strip())
    assert heading.split() == list(HEADINGS)
    assert line.split("  ")[0].strip() == FAULT[0] and FAULT[1] in line and line.split()[-1] == "1"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("short, as it is", "short, as it is"),
        ("x=a_name|another|third", "x=a_name|\n    another|\n    third"),
        ("one two three four five", "one two three\n    four five"),
        ("  bn=1.0,sync_bn=on,x=2", "  bn=1.0,\n      sync_bn=on,\n      x=2"),
        ("a_name_that_is_longer_than_it", "a_name_that_is_longer_than_it"),
        ("in full: ckpt-lab replay basic", "in full: ckpt-lab replay basic"),
        ("first\n\n  second line is long", "first\n\n  second line is\n      long"),
    ],
)
def test_lines_are_folded_at_spaces_and_after_commas(text: str, folded: str) -> None:
    assert fold(text, 16) == folded
