"""Cases on CUDA devices."""

from __future__ import annotations

import pytest
import torch

from harness.arms import arm_named
from harness.ranks import RankPool
from harness.runner import RunOptions, run_case
from matrix.case import parse_case

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


@pytest.mark.parametrize(
    "case",
    [
        "readme,device=cuda",
        "basic,autocast=fp16,backward=retained,device=cuda",
        "dropout,wrapper=ddp,accumulation=no_sync,steps=3,device=cuda",
    ],
)
def test_a_case_runs_on_cuda(case: str) -> None:
    with RankPool(2, backend="auto") as pool:
        row = run_case(parse_case(case), pool, RunOptions(arm=arm_named("checkpointed")))

    assert row.passed, row.findings


def test_ranks_share_a_device_over_gloo() -> None:
    with RankPool(3, backend="gloo") as pool:
        options = RunOptions(arm=arm_named("checkpointed"))
        row = run_case(parse_case("readme,wrapper=ddp,device=cuda"), pool, options)

    assert row.passed, row.findings
