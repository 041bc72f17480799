"""The whole line on real blocks and real ranks: right arms pass, wrong arms are caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.arms import arm_named
from harness.ranks import RankPool
from harness.row import Row
from harness.runner import RunOptions, run_case
from matrix.case import parse_case
from matrix.programs import ACCUMULATIONS

FAULTY = f"{Path(__file__).parent}/faulty_arms.py"
DOUBLE_UPDATE = "updated twice: the replay ran its running-statistics update again"


def run(pool: RankPool, case: str, arm: str, timeout: float = 60.0) -> Row:
    name = arm if arm in ("checkpointed", "torch_checkpoint", "snapshot_copy") else None
    chosen = arm_named(name or f"{FAULTY}:{arm}")
    return run_case(parse_case(case), pool, RunOptions(arm=chosen, case_timeout=timeout))


@pytest.mark.parametrize("case", ["basic-down", "bottleneck,wrapper=ddp,backward=retained"])
def test_a_bare_checkpoint_is_caught_with_the_norm_and_the_cause_named(
    rank_pool: RankPool, case: str
) -> None:
    row = run(rank_pool, case, "torch_checkpoint")

    assert row.outcome == "differs"
    assert {finding.rank for finding in row.findings} == {0, 1}
    first = row.findings[0]
    assert first.point == "backward[0]"
    assert first.path.startswith("buffers/conv1.1.running_mean")
    assert f"BatchNorm1d 'conv1.1' was {DOUBLE_UPDATE}" in first.cause
    assert "GradientCheckpointingMixin" in first.remedy
    assert first.tolerance == 0.0
    assert row.noise == 0.0


def test_a_bare_checkpoint_without_running_statistics_is_equal(rank_pool: RankPool) -> None:
    assert run(rank_pool, "basic,running_stats=off", "torch_checkpoint").outcome == "equal"


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
@pytest.mark.parametrize("wrapper", ["none", "ddp"])
def test_snapshot_and_copy_fails_where_a_plain_graph_still_waits_and_only_there(
    rank_pool: RankPool, wrapper: str, accumulation: str
) -> None:
    row = run(rank_pool, f"basic,wrapper={wrapper},accumulation={accumulation}", "snapshot_copy")

    if accumulation != "plain_then_checkpointed":
        assert row.outcome == "equal"
        return
    assert row.outcome == "error"
    assert row.findings[0].point == "backward[0]"
    assert "modified by an inplace operation" in str(row.findings[0].got)
    assert "copy_" in row.findings[0].cause
    assert "version counters" in row.findings[0].cause


def test_an_arm_that_never_checkpoints_is_no_pass(rank_pool: RankPool) -> None:
    row = run_case(parse_case("basic"), rank_pool, RunOptions(arm=arm_named("ordinary")))

    assert row.outcome == "never_replayed"


def test_a_wrong_gradient_on_one_rank_is_found_there(rank_pool: RankPool) -> None:
    row = run(rank_pool, "basic", "wrong_gradient")

    assert row.outcome == "differs"
    assert {finding.rank for finding in row.findings} == {1}
    assert row.findings[0].point == "backward[0]"
    assert row.findings[0].path.startswith("gradients/conv1.0.weight[")
    assert row.findings[0].expected != row.findings[0].got


def test_a_wrong_gradient_on_one_rank_under_ddp_is_no_mean(rank_pool: RankPool) -> None:
    row = run(rank_pool, "basic,wrapper=ddp", "wrong_gradient")

    assert row.outcome == "differs"
    assert {f.rank for f in row.findings if f.path.startswith("gradients/conv1.0.weight")} == {0, 1}


def test_a_drifting_buffer_is_found(rank_pool: RankPool) -> None:
    row = run(rank_pool, "basic", "drifting_buffer")

    assert row.outcome == "differs"
    assert row.findings[0].point == "forward[0]"
    assert row.findings[0].path.startswith("buffers/conv1.1.running_mean")


def test_another_random_state_is_found(rank_pool: RankPool) -> None:
    row = run(rank_pool, "basic", "extra_draw")

    assert (row.outcome, row.findings[0].path) == ("differs", "random_state/torch")


def test_a_new_state_key_is_found(rank_pool: RankPool) -> None:
    row = run(rank_pool, "basic", "extra_key")

    assert row.outcome == "differs"
    assert "state_dict/checkpoint_state" in [finding.path for finding in row.findings]


def test_an_arm_that_cannot_be_installed_is_an_error(rank_pool: RankPool) -> None:
    row = run(rank_pool, "basic", "not_installable")

    assert (row.outcome, row.findings[0].point) == ("error", "set-up")
    assert "this arm cannot be installed" in str(row.findings[0].got)


@pytest.mark.parametrize("case", ["basic", "basic,wrapper=ddp"])
def test_the_rank_that_raises_is_the_cause(rank_pool: RankPool, case: str) -> None:
    row = run(rank_pool, case, "raise_in_forward")

    assert row.outcome == "error"
    assert row.findings[0].rank == 1
    assert "ArithmeticError: planted on rank 1" in str(row.findings[0].got)
    if "ddp" in case:
        assert row.findings[1].cause.startswith("victim: rank 0 waited in a collective for rank 1")
    assert run(rank_pool, case, "checkpointed").outcome == "equal"


@pytest.mark.parametrize("case", ["basic", "basic,wrapper=ddp"])
def test_a_killed_rank_is_a_crash_and_the_run_goes_on(rank_pool: RankPool, case: str) -> None:
    row = run(rank_pool, case, "die")

    assert row.outcome == "crashed"
    assert row.findings[0].rank == 1
    assert "was killed by SIGKILL" in row.findings[0].cause
    assert run(rank_pool, case, "checkpointed").outcome == "equal"


def test_a_hang_is_reported_with_stacks_and_the_run_goes_on(rank_pool: RankPool) -> None:
    # What new ranks import for their first case may take longer than the limit.
    assert run(rank_pool, "basic,wrapper=ddp", "checkpointed").outcome == "equal"
    row = run(rank_pool, "basic,wrapper=ddp", "hang", timeout=2.0)

    assert row.outcome == "hung"
    assert [finding.rank for finding in row.findings] == [1, 0]
    assert "faulty_arms.py" in str(row.findings[0].got)
    assert row.findings[1].cause.startswith("victim: rank 0 waited in a collective for rank 1")
    assert run(rank_pool, "basic,wrapper=ddp", "checkpointed").outcome == "equal"


def test_the_same_seed_gives_the_same_findings(rank_pool: RankPool) -> None:
    first, second = (run(rank_pool, "basic", "torch_checkpoint") for _ in range(2))

    assert first.findings == second.findings
