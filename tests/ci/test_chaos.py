"""The small form of the chaos run, and what the whole one would find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.chaos import Chaos, Disasters, main
from harness.findings import Finding
from harness.request import RunRequest
from harness.row import Row
from harness.store import RESULTS_FILE
from matrix.case import parse_case

ONE = tuple("bn_momentum=0.1 running_stats=on autocast=off wrapper=none accumulation=one".split())


@pytest.mark.timeout(240)
def test_no_case_is_lost_or_wrong_and_nothing_is_left_when_ranks_and_the_lab_die(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = "--hangs 2 --kills 2 --errors 2 --lab-kills 1 --case-timeout 6"

    status = main(["--few", *counts.split()])

    assert status == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("24 cases, 2 hangs, 2 killed ranks, 2 errors, 1 de")


def row(case_id: str, outcome: str, said: str = "") -> str:
    case = parse_case(case_id)
    findings = [
        Finding(
            rank=rank, point="unknown", path="process", expected="", got=said, cause="", remedy=""
        )
        for rank in (0, 1)
    ]
    made = Row(
        case=case.id,
        subject=case.subject.name,
        axes=case.assignment,
        seed=0,
        arm="planned",
        ranks=2,
        outcome=outcome,  # type: ignore[arg-type]
        findings=tuple(findings) if said else (),
    )
    return json.dumps(made.to_dict()) + "\n"


def problems(tmp_path: Path, *lines: str) -> list[str]:
    """Return what is wrong with results of four cases of which one was to lose a rank."""
    tmp_path.mkdir(exist_ok=True)
    chaos = Chaos(
        RunRequest(suite="card", subjects=("basic",), axes=ONE),
        Disasters(hangs=0, kills=1, errors=0, lab_kills=0),
        tmp_path,
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / RESULTS_FILE).write_text("".join(lines))
    return chaos.wrong_rows()


def test_what_is_lost_doubled_or_wrong_is_told(tmp_path: Path) -> None:
    ids = ["basic", *(f"basic,backward={b}" for b in ("autograd.grad", "retained", "retained3"))]
    killed = "rank 1 was killed by SIGKILL"
    rows = {case: [row(case, "equal"), row(case, "crashed", killed)] for case in ids}

    all_equal = problems(tmp_path / "a", *(rows[case][0] for case in ids))
    (hit,) = [case for case in ids if all_equal == [f"{case} seed 0: equal, not crashed"]]
    right = [rows[case][case == hit] for case in ids]

    assert problems(tmp_path / "b", *right) == []
    assert problems(tmp_path / "c", *right[1:]) == [f"lost: ('{ids[0]}', 0)"]
    assert problems(tmp_path / "d", *right, right[0]) == [f"2 times: ('{ids[0]}', 0)"]
    silent = [row(case, "crashed", "?") if case == hit else rows[case][0] for case in ids]
    (text,) = problems(tmp_path / "e", *silent)
    assert "says nothing of 'was killed by SIGKILL'" in text
