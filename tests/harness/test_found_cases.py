"""Cases in which a suite once found a fault of ours; they stay equal."""

from __future__ import annotations

import pytest

from harness.arms import arm_named
from harness.job import make_job
from harness.ranks import RankPool
from harness.runner import RunOptions, run_case, time_limit
from matrix.case import parse_case

FOUND = {
    "a geometry lost its tensor stride where FSDP2 cast its features": (
        "minkunet,wrapper=fsdp2,mixed_precision=bf16,sync_bn=on"
    ),
    "a model cast to the dtype that weights of an FSDP2 unit happened to have": (
        "vae-encoder,wrapper=fsdp2,sites=scattered,fsdp_units=inside,reshard_after_forward=off,"
        "mixed_precision=bf16,nesting=nested"
    ),
    "a difference was asked for that torch.compile takes away": (
        "dropout,enable=rng_not_preserved,compile=aot_eager"
    ),
    "the compiler gave memory away that a retained graph needs": (
        "dropout,backward=retained,compile=inductor"
    ),
    "the compiler rounded to bfloat16 in the forward and not in the replay": (
        "instance-norm,autocast=bf16,nesting=nested,selective=on,compile=inductor"
    ),
}


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_it_is_equal(rank_pool: RankPool, case: str) -> None:
    row = run_case(parse_case(case), rank_pool, RunOptions(arm=arm_named("checkpointed")))

    assert row.outcome == "equal", row.findings


@pytest.mark.parametrize(("backend", "seconds"), [("inductor", 247.0), ("aot_eager", 7.0)])
def test_a_cold_compilation_does_not_count_as_hung(backend: str, seconds: float) -> None:
    arm = arm_named("checkpointed")
    job = make_job(parse_case(f"dit,compile={backend}"), arm=arm.install, seed=0)

    assert time_limit(job, RunOptions(arm=arm, case_timeout=7.0)) == seconds
