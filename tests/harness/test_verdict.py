from __future__ import annotations

from typing import Any

import pytest

from harness.findings import NEVER_REPLAYED, Finding
from harness.ranks import RankResult
from harness.verdict import RankVerdict, combine

WAITING = """\
Thread 0x00007f (most recent call first):
  File "/x/site-packages/some/thread.py", line 1 in run

Current thread 0x00007e (most recent call first):
  File "/x/torch/distributed/distributed_c10d.py", line 2 in all_reduce
  File "/x/main.py", line 3 in main
"""
LOOPING = WAITING.replace("/x/torch/distributed/distributed_c10d.py", "/x/block.py")


def finding(rank: int, path: str = "buffers/x") -> Finding:
    return Finding(
        rank=rank, point="forward[0]", path=path, expected=1, got=2, cause="because", remedy="do"
    )


def judged(rank: int, *findings: Finding, noise: float | None = None) -> RankResult:
    value = RankVerdict(findings=list(findings), noise=noise)
    return RankResult(rank=rank, status="returned", value=value)


def raised(rank: int, at: float, *, in_collective: bool = False) -> RankResult:
    value = RankVerdict(
        findings=[finding(rank, "exception")], raised_at=at, in_collective=in_collective
    )
    return RankResult(rank=rank, status="returned", value=value)


def failed(rank: int, status: Any, at: float = 1.0, detail: str = "") -> RankResult:
    return RankResult(rank=rank, status=status, error="ended", detail=detail, at=at)


def test_nothing_found_is_equal() -> None:
    assert combine([judged(0), judged(1)]) == ("equal", (), None)


def test_a_finding_on_any_rank_differs() -> None:
    outcome, findings, noise = combine([judged(0), judged(1, finding(1), noise=0.5)])

    assert (outcome, [f.rank for f in findings], noise) == ("differs", [1], 0.5)


def test_never_replaying_is_an_outcome_of_its_own_unless_more_was_found() -> None:
    never = [judged(rank, finding(rank, NEVER_REPLAYED)) for rank in (0, 1)]

    assert combine(never).outcome == "never_replayed"
    assert combine([never[0], judged(1, finding(1))]).outcome == "differs"


def test_the_rank_that_raised_first_comes_first() -> None:
    outcome, findings, _ = combine([raised(0, at=2.0), raised(1, at=1.0)])

    assert (outcome, [f.rank for f in findings]) == ("error", [1, 0])
    assert [f.cause for f in findings] == ["because", "because"]


def test_a_rank_whose_collective_failed_is_a_victim_even_if_it_noticed_first() -> None:
    outcome, findings, _ = combine([raised(0, at=1.0, in_collective=True), raised(1, at=2.0)])

    assert (outcome, [f.rank for f in findings]) == ("error", [1, 0])
    assert findings[1].cause.startswith("victim: rank 0 waited in a collective for rank 1")


def test_a_death_comes_before_everything() -> None:
    outcome, findings, _ = combine(
        [raised(0, at=1.0, in_collective=True), failed(1, "died", at=2.0), raised(2, at=0.5)]
    )

    assert (outcome, [f.rank for f in findings]) == ("crashed", [1, 2, 0])
    assert findings[0].got == "ended"


def test_a_rank_that_loops_is_the_cause_and_a_waiting_one_its_victim() -> None:
    outcome, findings, _ = combine(
        [failed(0, "stalled", at=1.0, detail=WAITING), failed(1, "stalled", at=2.0, detail=LOOPING)]
    )

    assert (outcome, [f.rank for f in findings]) == ("hung", [1, 0])
    assert "victim" in findings[1].cause
    assert "all_reduce" in str(findings[1].got)


def test_a_rank_that_still_waits_for_one_that_raised_is_its_victim() -> None:
    outcome, findings, _ = combine([failed(0, "stalled", detail=WAITING), raised(1, at=9.0)])

    assert (outcome, [f.rank for f in findings]) == ("error", [1, 0])
    assert "victim" in findings[1].cause


def test_a_rank_that_was_only_slow_when_another_one_died_says_so() -> None:
    outcome, findings, _ = combine(
        [failed(0, "stalled", at=2.0, detail=LOOPING), failed(1, "died", at=1.0)]
    )

    assert (outcome, [f.rank for f in findings]) == ("crashed", [1, 0])
    assert findings[1].cause.startswith("stopped: rank 0 was still busy a while after rank 1")


def test_ranks_that_all_wait_are_no_victims_of_each_other() -> None:
    outcome, findings, _ = combine([failed(r, "stalled", detail=WAITING) for r in (0, 1)])

    assert outcome == "hung"
    assert all("waited in a collective" in f.cause and "victim" not in f.cause for f in findings)


def test_what_other_ranks_found_is_kept_behind_a_failure() -> None:
    outcome, findings, _ = combine([judged(0, finding(0)), raised(1, at=1.0)])

    assert (outcome, [f.path for f in findings]) == ("error", ["exception", "buffers/x"])


@pytest.mark.parametrize("detail", ["", "no stacks here"])
def test_stacks_may_be_missing(detail: str) -> None:
    assert combine([failed(0, "stalled", detail=detail)]).outcome == "hung"
