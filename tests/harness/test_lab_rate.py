from __future__ import annotations

import pytest
import torch

from harness.arms import ARMS, ORDINARY
from harness.bench.bare_loop import observations
from harness.bench.lab_rate import BARE_LOOP, LabRate
from harness.job import make_job
from harness.program import execute
from harness.ranks import RankPool
from matrix.case import parse_case
from matrix.subjects import subject_named
from matrix.suites import select, suite_named

CHECKPOINTED = ARMS[0].install


@pytest.mark.parametrize(
    "case",
    [
        "readme,backward=retained,accumulation=joint,steps=3",
        "readme,backward=autograd.grad,accumulation=plain_then_checkpointed",
    ],
)
@pytest.mark.parametrize("arm", [ORDINARY, CHECKPOINTED])
def test_the_bare_loop_sees_what_the_lab_sees(case: str, arm: str) -> None:
    job = make_job(parse_case(case), arm=arm, seed=0)

    bare = observations(job, arm, rank=0)

    points = execute(job, arm, rank=0).points
    groups = ("outputs", "losses", "gradients", "buffers", "parameters", "momenta")
    seen = [
        value
        for point, observed in points.items()
        if point != "set-up"
        for group in groups
        for value in observed.get(group, {}).values()
        if value is not None
    ]
    for value in seen:
        assert any(value.shape == b.shape and torch.equal(value, b) for b in bare)


def test_the_bare_loop_runs_every_case_that_the_rate_is_measured_on(rank_pool: RankPool) -> None:
    rate = LabRate()
    cases = select(suite_named(rate.suite), subjects=[subject_named(rate.subject)]).cases
    jobs = [make_job(case, arm=CHECKPOINTED, seed=0) for case in cases]

    results = rank_pool.run(BARE_LOOP, jobs, 120.0)

    assert all(result.value > 0 for result in results), results


def test_a_rate_is_a_ratio_of_times_per_case() -> None:
    ratio = LabRate().measure(2)

    assert ratio.pairs == 2
    assert ratio.low <= ratio.median <= ratio.high
    assert 0 < ratio.reference and 0 < ratio.judged
