from __future__ import annotations

import pytest

from matrix.axes import AXES
from matrix.programs import (
    AUTOCAST_DTYPES,
    AutogradGrad,
    Backward,
    Forward,
    OptimizerStep,
    Program,
    build_program,
)
from matrix.values import Value

DEFAULTS: dict[str, Value] = {axis.name: axis.default for axis in AXES}


def program(**values: Value) -> Program:
    return build_program({**DEFAULTS, **values})


def test_the_default_is_one_forward_one_backward_and_one_optimizer_step() -> None:
    assert program().steps == (Forward(0), Backward((0,)), OptimizerStep())


def test_joint_accumulation_runs_one_backward_through_two_forwards() -> None:
    assert program(accumulation="joint").steps[:-1] == (Forward(0), Forward(1), Backward((0, 1)))


def test_sequential_accumulation_runs_a_backward_after_each_forward() -> None:
    steps = program(accumulation="sequential").steps[:-1]

    assert steps == (Forward(0), Backward((0,)), Forward(1), Backward((1,)))


def test_plain_then_checkpointed_switches_checkpointing_off_for_the_first_forward() -> None:
    steps = program(accumulation="plain_then_checkpointed").steps[:-1]

    assert steps == (Forward(0, checkpointed=False), Forward(1), Backward((0, 1)))


def test_no_sync_holds_back_all_microbatches_but_the_last() -> None:
    steps = program(accumulation="no_sync").steps[:-1]

    assert [step.microbatch for step in steps if isinstance(step, Forward)] == [0, 1, 2, 3]
    assert [getattr(step, "synced", None) for step in steps] == [False] * 6 + [True] * 2


@pytest.mark.parametrize(("backward", "passes"), [("retained", 2), ("retained3", 3)])
def test_a_retained_graph_is_kept_until_the_last_pass(backward: str, passes: int) -> None:
    steps = program(backward=backward, accumulation="joint").steps[2:-1]

    kept = [Backward((0, 1), retain_graph=True)] * (passes - 1)
    assert steps == (*kept, Backward((0, 1)))


def test_autograd_grad_takes_the_place_of_backward() -> None:
    assert program(backward="autograd.grad").steps[:-1] == (Forward(0), AutogradGrad((0,)))


def test_three_steps_read_new_microbatches_and_end_with_the_optimizer() -> None:
    three = program(steps=3, accumulation="joint")

    assert three.microbatches == tuple(range(6))
    assert three.steps[3::4] == (OptimizerStep(),) * 3
    assert [group[0].forwards for group in three.backwards] == [(0, 1), (2, 3), (4, 5)]


def test_ddp_copies_buffers_unless_the_forward_before_ran_under_no_sync() -> None:
    def copied(**values: Value) -> list[bool]:
        built = program(wrapper="ddp", **values)
        return [built.copies_buffers(forward) for forward in range(len(built.forwards))]

    assert copied(accumulation="joint") == [True, True]
    assert copied(accumulation="joint", broadcast_buffers=False) == [False, False]
    assert copied(accumulation="no_sync", steps=3) == [True, False, False, False] * 3


def test_replays_are_counted_per_backward_and_only_where_checkpointed() -> None:
    assert program(backward="retained").replays(0) == 2
    mixed = program(accumulation="plain_then_checkpointed", backward="retained")
    assert [mixed.replays(0), mixed.replays(1)] == [0, 2]
    sequential = program(accumulation="sequential")
    assert [sequential.replays(0), sequential.replays(1)] == [1, 1]


def test_wrapper_options_and_autocast_reach_the_program() -> None:
    wrapped = program(wrapper="ddp", broadcast_buffers=False, autocast="bf16")

    assert (wrapped.wrapper, wrapped.broadcast_buffers) == ("ddp", False)
    assert wrapped.autocast == AUTOCAST_DTYPES["bf16"] == "bfloat16"
    assert program(wrapper="ddp").broadcast_buffers
    assert program(wrapper="ddp").init_sync
    assert not program(wrapper="ddp", init_sync=False).init_sync
    assert program(device="cuda").device == "cuda"


def test_microbatches_are_the_ones_read() -> None:
    assert program().microbatches == (0,)
    assert program(accumulation="joint").microbatches == (0, 1)
