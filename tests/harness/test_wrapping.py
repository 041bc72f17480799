from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from harness.ranks import RankPool
from harness.sharding import units_of
from harness.wrapping import wrap
from matrix.programs import Backward, Forward, Program, Sharding

TASKS = f"{Path(__file__).parent}/rank_tasks.py"
STEP = Program(
    wrapper="none", broadcast_buffers=False, autocast=None, steps=(Forward(0), Backward((0,)))
)


def test_no_wrapper_is_the_module_itself() -> None:
    module = nn.Linear(1, 1)

    assert wrap(module, STEP) is module


def test_an_unknown_wrapper_is_named() -> None:
    with pytest.raises(ValueError, match="no wrapper 'fsdp'; valid wrappers: none, ddp, fsdp2"):
        wrap(nn.Linear(1, 1), replace(STEP, wrapper="fsdp"))


def test_ddp_gets_the_options_of_the_program(rank_pool: RankPool) -> None:
    def kept(init_sync: bool) -> list[bool]:
        program = replace(STEP, wrapper="ddp", init_sync=init_sync)
        return [r.value for r in rank_pool.run(f"{TASKS}:weights_after_wrapping", program, 30.0)]

    assert kept(init_sync=True) == [True, False]
    assert kept(init_sync=False) == [True, True]


@pytest.mark.parametrize("units", ["block", "whole", "inside"])
def test_fsdp_shards_the_units_asked_for_and_whole_tensors_come_back(
    rank_pool: RankPool, units: str
) -> None:
    sharding = Sharding(units, reshard_after_forward=True, mixed_precision=None)
    program = replace(STEP, wrapper="fsdp2", sharding=sharding)

    sharded = {
        "block": ["", "module"],
        "whole": [""],
        "inside": ["", "module.linear", "module.norm"],
    }
    results = rank_pool.run(f"{TASKS}:sharded_units", program, 30.0)
    assert [r.value for r in results] == [(sharded[units], True)] * 2


def test_unknown_units_are_named() -> None:
    with pytest.raises(ValueError, match="no kind of FSDP units 'layer'; valid kinds: block"):
        units_of(nn.Linear(1, 1), "layer")
