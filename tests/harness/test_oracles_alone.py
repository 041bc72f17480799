"""Each truth of the lab sees a fault that no other one sees: mostly one that both arms share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.arms import arm_named
from harness.findings import BITWISE, Finding
from harness.ranks import RankPool
from harness.row import Row
from harness.runner import RunOptions, run_case
from matrix.case import parse_case

HERE = Path(__file__).parent
WRONG = f"{HERE}/doubly_wrong.py"
FAULTY = f"{HERE}/faulty_arms.py"


def oracle(finding: Finding) -> str:
    """Return which truth a finding says is broken."""
    source, group = finding.tolerance_source, finding.path.partition("/")[0]
    if source == "exact count":
        return "updates" if group == "buffers" else "calls"
    for start, name in (
        ("closed form", "running statistics"),
        ("exact keys", "state keys"),
        ("bitwise, ", "ranks"),
    ):
        if source.startswith(start):
            return name
    if "against their float64 mean" in source:
        return "mean gradient"
    if "against the dense convolution" in source:
        return "dense convolution"
    assert source == BITWISE
    return "random state" if group == "random_state" else "the ordinary arm"


def run(
    pool: RankPool,
    case: str,
    *,
    block: str = "",
    inputs: str = "",
    arm: str = "checkpointed",
) -> Row:
    parsed = parse_case(case)
    subject = parsed.subject
    if block:
        subject = replace(subject, factory=f"{WRONG}:{block}")
    if inputs:
        subject = replace(subject, inputs=f"{WRONG}:{inputs}")
    return run_case(replace(parsed, subject=subject), pool, RunOptions(arm=arm_named(arm)))


@pytest.mark.parametrize(
    ("block", "case", "alone", "path"),
    [
        ("CountsTwice", "readme", "updates", "buffers/norm.num_batches_tracked"),
        ("UpdatesTwice", "readme", "running statistics", "buffers/norm.running_mean["),
        ("ScalesUnderDdp", "readme,wrapper=ddp", "mean gradient", "gradients/linear.weight["),
        ("LeavesABufferOut", "readme,wrapper=ddp,steps=3", "ranks", "buffers/norm.running_mean["),
        ("AddsAKey", "readme", "state keys", "state_dict/late"),
        ("shifted_block", "basic", "dense convolution", "convolution/conv1.0["),
        ("shifted_block", "basic,autocast=bf16", "dense convolution", "convolution/conv1.0["),
    ],
)
def test_a_block_that_is_wrong_in_both_arms(
    rank_pool: RankPool, block: str, case: str, alone: str, path: str
) -> None:
    row = run(rank_pool, case, block=block)

    assert row.outcome == "differs"
    assert {oracle(finding) for finding in row.findings} == {alone}
    assert any(finding.path.startswith(path) for finding in row.findings)


def test_ranks_that_see_the_same_data_in_both_arms(rank_pool: RankPool) -> None:
    row = run(rank_pool, "readme,wrapper=ddp", inputs="same_rows")

    assert {oracle(finding) for finding in row.findings} == {"ranks"}
    assert {finding.path for finding in row.findings} == {"buffers"}


@pytest.mark.parametrize(
    ("arm", "outcome", "alone"),
    [
        (f"{WRONG}:computes_once_more", "differs", "calls"),
        ("ordinary", "never_replayed", "calls"),
        (f"{FAULTY}:extra_draw", "differs", "random state"),
    ],
)
def test_an_arm_whose_values_are_all_right(
    rank_pool: RankPool, arm: str, outcome: str, alone: str
) -> None:
    row = run(rank_pool, "readme", arm=arm)

    assert row.outcome == outcome
    assert {oracle(finding) for finding in row.findings} == {alone}


@pytest.mark.parametrize("case", ["readme,wrapper=ddp,steps=3", "basic", "basic,autocast=bf16"])
def test_the_blocks_as_they_are_meant_pass(rank_pool: RankPool, case: str) -> None:
    assert run(rank_pool, case).outcome == "equal"
