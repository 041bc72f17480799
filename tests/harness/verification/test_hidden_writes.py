"""A look for what replays write out of sight that could not be taken is told, not claimed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from harness.arms import arm_named
from harness.checklist.answers import checklist
from harness.ranks.pool import RankResult
from harness.row import Row
from harness.store import Store
from harness.testing import CkptLab, cases_of
from harness.verification import hidden_state
from harness.verification.files import write_files
from harness.verification.hidden_writes import with_hidden_writes
from harness.verification.local_ranks import LocalRank
from harness.verification.request import VerifyRequest
from matrix.case import parse_case
from tests.harness.verification import odd_models as odd
from tests.harness.verification.test_odd_models import ONE_CASE, verified

READ_THROUGH = "belongs under 'if not wcn_ckpt.is_replaying():'"


@pytest.fixture
def _nothing_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot(module: object) -> dict[str, Any]:
        raise MemoryError("no room for a copy\nof the state")

    monkeypatch.setattr(hidden_state, "snapshot", snapshot)


@pytest.mark.usefixtures("_nothing_can_be_copied")
def test_a_look_that_raises_is_not_claimed_in_any_report(tmp_path: Path) -> None:
    report = verified(odd.Plain, odd.rows)

    assert report.verdict == "no finding, but not checked: mutable state, see below"
    assert report.exit_status == 1 and not report.passed
    with Store(tmp_path, {}) as store:
        write_files(store, report, VerifyRequest(target="a:b", inputs="a:c"))
    answer = json.loads((tmp_path / "verify.json").read_text())["checklist"][-1]
    assert answer["status"] == "not measured"
    for name in ("verify.txt", "report.html", "summary.md"):
        text = (tmp_path / name).read_text().replace("&#39;", "'")
        assert "the step for it raised: MemoryError: no room for a copy; make that pass" in text
        assert READ_THROUGH in text
        assert "safe to checkpoint" not in text


def test_a_model_with_more_state_than_is_compared_is_not_called_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = len(hidden_state.snapshot(odd.Plain()))
    monkeypatch.setattr(hidden_state, "MOST_VALUES", held)
    assert verified(odd.Plain, odd.rows).passed
    monkeypatch.setattr(hidden_state, "MOST_VALUES", held - 1)

    report = verified(odd.Plain, odd.rows)

    assert report.verdict == "no finding, but not checked: mutable state, see below"
    assert f"hold more than the {held - 1} values that are" in report.rows[0].unchecked


@pytest.mark.usefixtures("_nothing_can_be_copied")
def test_a_test_whose_look_raises_fails() -> None:
    ranks = LocalRank()
    (case, *_) = cases_of(ranks, odd.Plain, odd.rows, axes=ONE_CASE)

    with pytest.raises(pytest.fail.Exception, match="not checked: what only replays write"):
        CkptLab(ranks).check(case)


class Stuck:
    """Ranks of which one dies, or none comes to an end."""

    size = 2

    def __init__(self, *results: RankResult) -> None:
        self._results = list(results)

    def run(self, task: str, payload: object, timeout: float) -> list[RankResult]:
        return self._results

    def interrupt(self) -> None: ...


STALLED = RankResult(rank=0, status="stalled", error="still busy")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            RankResult(rank=1, status="stalled", error="still busy"),
            "the step for it did not come to an end in 20 s; give it more with --case-timeout",
        ),
        (
            RankResult(rank=1, status="died", error="killed by SIGKILL"),
            f"the step for it ended rank 1: killed by SIGKILL; make that pass, or read through the "
            f"forward: what it writes besides buffers {READ_THROUGH}",
        ),
    ],
)
def test_ranks_that_stall_or_die_are_told_apart(other: RankResult, text: str) -> None:
    case = parse_case("readme")
    row = Row(
        case=case.id,
        subject="readme",
        axes=case.assignment,
        seed=0,
        arm="checkpointed",
        ranks=2,
        outcome="equal",
    )

    found = with_hidden_writes(row, case, arm_named("checkpointed"), Stuck(STALLED, other), 20.0)

    assert found.passed
    assert found.unchecked == f"what only replays write was not looked for: {text}"
    assert Row.from_dict(found.to_dict()) == found
    answer = checklist("readme", [found], "not asked").answers[-1]
    assert answer.status == "not measured" and text in answer.text


class Jagged(odd.Plain):
    def __init__(self) -> None:
        super().__init__()
        self.anchors = np.array([np.zeros(2), np.zeros(3)], dtype=object)


class CountsInJagged(Jagged):
    def forward(self, x: Tensor) -> Tensor:
        self.anchors[1][2] += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "status", "text"),
    [
        (Jagged, 0, "safe to checkpoint: every check passed"),
        (CountsInJagged, 1, "a replay wrote 'anchors[1]' (3.0 before the backward, 4.0 after it)"),
    ],
)
def test_arrays_of_arrays_are_looked_into(
    model: Callable[[], odd.Plain], status: int, text: str
) -> None:
    report = verified(model, odd.rows)

    assert (report.exit_status, text in report.text) == (status, True), report.text
