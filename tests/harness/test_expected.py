"""Differences that are right to be there, and what happens where they are not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.arms import arm_named
from harness.job import Job, make_job
from harness.ranks import RankPool
from harness.runner import JUDGE
from harness.verdict import CaseVerdict, combine
from matrix.case import parse_case
from matrix.expectations import ExpectedDifference

FAULTY = f"{Path(__file__).parent}/faulty_arms.py"


def job(case: str, *expected: ExpectedDifference, arm: str = "checkpointed") -> Job:
    made = make_job(parse_case(case), arm=arm_named(arm).install, seed=0)
    return replace(made, expected=expected) if expected else made


def judged(pool: RankPool, job: Job) -> CaseVerdict:
    return combine(pool.run(JUDGE, job, 60.0))


def expected(*groups: str, must: bool = False) -> ExpectedDifference:
    return ExpectedDifference({}, groups, must, "for this test")


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("wrapper", ["none", "ddp"])
def test_dropout_without_preserved_random_numbers_differs_as_expected(
    rank_pool: RankPool, wrapper: str, steps: int
) -> None:
    case = f"dropout,wrapper={wrapper},enable=rng_not_preserved,steps={steps}"

    verdict = judged(rank_pool, job(case))

    assert verdict.outcome == "expected_difference"
    assert {finding.rank for finding in verdict.findings} == {0, 1}
    for finding in verdict.findings:
        assert finding.cause.startswith("expected: with preserve_rng_state=False")
        assert finding.expected != finding.got


def test_an_order_that_is_drawn_within_an_outer_boundary_differs_as_expected(
    rank_pool: RankPool,
) -> None:
    case = "patch-attention,enable=rng_not_preserved,order=shuffled,nesting=nested"

    assert judged(rank_pool, job(case)).outcome == "expected_difference"
    assert judged(rank_pool, job(case.replace("nested", "flat"))).outcome == "equal"
    assert judged(rank_pool, job(case.replace("rng_not_preserved", "injected"))).outcome == "equal"


def test_a_difference_that_must_be_there_and_is_not_is_a_finding(rank_pool: RankPool) -> None:
    verdict = judged(rank_pool, job("readme", expected("gradients", must=True)))

    assert verdict.outcome == "differs"
    assert [finding.rank for finding in verdict.findings] == [0, 1]
    assert "the arms are equal where they cannot be: for this test" in verdict.findings[0].cause


def test_a_difference_that_may_be_there_and_is_not_passes(rank_pool: RankPool) -> None:
    assert judged(rank_pool, job("readme", expected("gradients"))).outcome == "equal"


def test_other_kinds_of_observations_still_fail_the_case(rank_pool: RankPool) -> None:
    differing = job("readme", expected("gradients"), arm=f"{FAULTY}:drifting_buffer")

    verdict = judged(rank_pool, differing)

    assert verdict.outcome == "differs"
    assert all(finding.path.startswith("buffers") for finding in verdict.findings)


@pytest.mark.parametrize("wrapper", ["none", "ddp"])
def test_an_exception_of_the_ordinary_arm_can_be_expected(
    rank_pool: RankPool, wrapper: str
) -> None:
    raising = replace(
        job(f"readme,wrapper={wrapper}", expected("exception")),
        factory=f"{FAULTY}:RaisingBlock",
    )

    assert judged(rank_pool, raising).outcome == "expected_difference"
    assert judged(rank_pool, replace(raising, expected=())).outcome == "error"
    assert judged(rank_pool, job("readme,wrapper=ddp")).outcome == "equal"
