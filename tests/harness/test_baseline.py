from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.baseline import Baseline, BaselineError, Known, read_baseline
from harness.findings import Finding
from harness.row import Outcome, Row, exit_status


def row(case: str, *paths: str, outcome: Outcome = "differs", arm: str = "checkpointed") -> Row:
    findings = tuple(
        Finding(rank=0, point="end", path=path, expected=1, got=2, cause="it drifted", remedy="r")
        for path in paths
    )
    return Row(
        case=case,
        subject=case.partition(",")[0],
        axes={},
        seed=0,
        arm=arm,
        ranks=2,
        outcome=outcome,
        findings=findings,
    )


def known(case: str = "basic,*", path: str = "buffers/*", arm: str = "*") -> Known:
    return Known(case=case, path=path, reason="accepted for this test", arm=arm)


def test_a_case_whose_findings_are_all_known_is_expected_to_differ_and_still_shows_them() -> None:
    found = row("basic,wrapper=ddp", "buffers/norm.running_mean[3]", "buffers/norm.running_var[0]")

    marked = Baseline((known(),)).mark(found)

    assert marked.outcome == "expected_difference"
    assert exit_status([marked]) == 0
    assert [f.path for f in marked.findings] == [f.path for f in found.findings]
    assert marked.findings[0].cause == "known: accepted for this test (it drifted)"


def test_one_unknown_finding_keeps_the_case_failing() -> None:
    found = row("basic,wrapper=ddp", "buffers/norm.running_mean[3]", "gradients/weight[0]")

    marked = Baseline((known(),)).mark(found)

    assert marked.outcome == "differs"
    assert [f.cause.startswith("known") for f in marked.findings] == [True, False]


@pytest.mark.parametrize("listed", [known(case="bottleneck*"), known(arm="torch_checkpoint")])
def test_other_cases_and_arms_are_not_touched(listed: Known) -> None:
    found = row("basic,wrapper=ddp", "buffers/norm.running_mean[3]")

    assert Baseline((listed,)).mark(found) == found


def test_a_known_crash_can_be_listed() -> None:
    found = row("basic,wrapper=ddp", "process", outcome="crashed")

    assert Baseline((known(path="process"),)).mark(found).outcome == "expected_difference"


def test_a_listed_finding_that_no_case_shows_has_vanished() -> None:
    baseline = Baseline((known(), known(case="dropout*")))
    gone = row("basic,wrapper=ddp", outcome="equal")

    assert baseline.vanished([gone]) == [baseline.known[0]]
    assert baseline.vanished([gone, row("basic,steps=3", "buffers/b")]) == []
    assert baseline.vanished([]) == []


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    entry = {"case": "basic*", "path": "buffers/*", "reason": "why"}
    path.write_text(json.dumps({"schema": 1, "known": [entry, {**entry, "arm": "ordinary"}]}))

    first, second = read_baseline(path).known

    assert (first.case, first.path, first.reason, first.arm) == ("basic*", "buffers/*", "why", "*")
    assert second.arm == "ordinary"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read baseline file"),
        ("[]", "is no baseline file"),
        ('{"schema": 2, "known": []}', "needs 'schema': 1"),
        ('{"schema": 1}', "'known' must be a list, got None"),
        ('{"schema": 1, "known": [7]}', "7 is no entry"),
        ('{"schema": 1, "known": [{"case": "a", "path": "b"}]}', "lacks 'reason'"),
        (
            '{"schema": 1, "known": [{"case": "a", "path": "b", "reason": "c", "rank": "1"}]}',
            "has no field 'rank'",
        ),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "known.json"
    path.write_text(text)

    with pytest.raises(BaselineError, match=message):
        read_baseline(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="no baseline file .*known.json"):
        read_baseline(tmp_path / "known.json")
