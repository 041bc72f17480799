from __future__ import annotations

import pytest
import torch

from harness.arms import ARMS, ORDINARY
from harness.bench.bare_loop import observations
from harness.bench.lab_cases import BARE_LOOP, jobs_of, tiny_cases
from harness.job import make_job
from harness.program import execute
from harness.ranks import RankPool
from matrix.case import parse_case

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
    results = rank_pool.run(BARE_LOOP, jobs_of(tiny_cases()), 120.0)

    assert all(result.value > 0 for result in results), results
