"""Faults on purpose: each is found, with rank, point, path, both values and how to replay it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.arms import arm_named
from harness.findings import Finding
from harness.ranks import RankPool
from harness.row import Row
from harness.runner import RunOptions, run_case
from matrix.case import parse_case
from tests.harness.conftest import Lab

FAULTY = f"{Path(__file__).parent}/faulty_arms.py"


def run(pool: RankPool, case: str, arm: str) -> Row:
    name = arm if arm == "torch_checkpoint" else f"{FAULTY}:{arm}"
    return run_case(parse_case(case), pool, RunOptions(arm=arm_named(name), seed=5))


def at(row: Row, rank: int, point: str, path: str) -> Finding:
    """Return the finding at a place, where there is exactly one."""
    (finding,) = [
        finding
        for finding in row.findings
        if (finding.rank, finding.point) == (rank, point) and finding.path.startswith(path)
    ]
    assert finding.expected != finding.got
    return finding


@pytest.mark.parametrize("case", ["readme,wrapper=ddp", "basic,enable=injected,steps=3"])
def test_a_double_update(rank_pool: RankPool, case: str) -> None:
    row = run(rank_pool, case, "torch_checkpoint")

    assert row.outcome == "differs"
    for rank in (0, 1):
        counter = next(
            f for f in row.findings if f.rank == rank and f.path.endswith("num_batches_tracked")
        )
        assert (counter.point, counter.expected, counter.got) == ("backward[0]", 1, 2)
        assert "updated twice" in counter.cause
    assert row.replay_command == f"ckpt-lab replay {case} --arm torch_checkpoint --seed 5 --ranks 2"


@pytest.mark.parametrize("wrapper", ["none", "ddp"])
def test_a_wrong_gradient_on_one_rank_only(rank_pool: RankPool, wrapper: str) -> None:
    row = run(rank_pool, f"readme,wrapper={wrapper}", "wrong_gradient")

    assert row.outcome == "differs"
    finding = at(row, 1, "backward[0]", "gradients/linear.weight[0, 0]")
    assert finding.max_abs is not None and finding.max_abs > finding.tolerance
    # DDP spreads the wrong gradient over all ranks.
    ranks = {f.rank for f in row.findings if f.path.startswith("gradients")}
    assert ranks == ({1} if wrapper == "none" else {0, 1})


@pytest.mark.parametrize("case", ["readme,steps=3", "readme,wrapper=ddp,steps=3,init_sync=off"])
def test_a_buffer_that_drifts_after_the_third_step(rank_pool: RankPool, case: str) -> None:
    row = run(rank_pool, case, "drift_after_third_step")

    assert row.outcome == "differs"
    finding = at(row, 1, "step[2]", "buffers/norm.running_mean[0]")
    assert finding.max_abs == pytest.approx(1e-5, rel=0.1)
    assert {f.rank for f in row.findings} == {1}
    assert {f.point for f in row.findings} == {"step[2]"}


def test_the_replay_command_finds_the_same_again(rank_pool: RankPool, lab_here: Lab) -> None:
    row = run(rank_pool, "readme,steps=3", "drift_after_third_step")
    words = row.replay_command.split()
    assert words[0] == "ckpt-lab"

    done = lab_here(*words[1:])

    assert done.returncode == 1, done.stderr
    assert "rank 1 · step[2] · buffers/norm.running_mean[0]" in done.stdout
