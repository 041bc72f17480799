from __future__ import annotations

from harness.faults import FAULTS
from harness.faults.kill_matrix import Kills, cases_for, kill_matrix, kills_table
from harness.ranks import RankPool
from matrix.suites import Plan, Suite

TINY = Suite("tiny", (Plan(1),), "each value once")
BY_NAME = {fault.name: fault for fault in FAULTS}


def test_a_fault_is_tried_where_it_can_show_and_seen_where_it_does(rank_pool: RankPool) -> None:
    (kills,) = kill_matrix([BY_NAME["counter-buffer-rebound"]], TINY, rank_pool)

    assert kills.tried == tuple(case.id for case in cases_for(kills.fault, TINY))
    assert all(case.startswith("rebound") for case in kills.tried)
    assert kills.seen_by == kills.tried
    assert kills.to_dict()["seen"] == len(kills.tried)


def test_a_fault_with_a_block_of_its_own_is_tried_on_that_block() -> None:
    fault = BY_NAME["numpy-random"]

    assert {case.subject for case in cases_for(fault, TINY)} == set(fault.subjects)


def test_what_needs_cuda_is_not_counted(rank_pool: RankPool) -> None:
    assert list(kill_matrix([BY_NAME["cuda-rng-not-preserved"]], TINY, rank_pool)) == []


def test_a_sample_is_spread_over_the_suite(rank_pool: RankPool) -> None:
    fault = BY_NAME["double-update"]
    cases = [case.id for case in cases_for(fault, TINY)]

    (kills,) = kill_matrix([fault], TINY, rank_pool, sample=2)

    assert len(cases) > 3
    assert list(kills.tried) == [cases[0], cases[len(cases) // 2]]
    assert kills.reached == len(cases)
    assert kills.text.endswith(f" of 2 ({len(cases)})")


def test_the_table_has_one_line_for_each_fault() -> None:
    kills = Kills(FAULTS[0], 2, ("a", "b"), ("a",))

    assert kills_table("tiny", [kills]).splitlines() == [
        "| fault | cases of `tiny` that see it |",
        "|---|---|",
        "| `double-update` | 1 of 2 |",
    ]
