from __future__ import annotations

from matrix.axes import AXES
from matrix.programs import (
    AUTOCAST_DTYPES,
    AutogradGrad,
    Backward,
    Forward,
    Program,
    build_program,
)
from matrix.values import Value

DEFAULTS: dict[str, Value] = {axis.name: axis.default for axis in AXES}


def program(**values: Value) -> Program:
    return build_program({**DEFAULTS, **values})


def test_the_default_step_is_one_forward_and_one_backward() -> None:
    assert program().steps == (Forward(0), Backward((0,)))


def test_joint_accumulation_runs_one_backward_through_two_forwards() -> None:
    assert program(accumulation="joint").steps == (Forward(0), Forward(1), Backward((0, 1)))


def test_sequential_accumulation_runs_a_backward_after_each_forward() -> None:
    steps = program(accumulation="sequential").steps

    assert steps == (Forward(0), Backward((0,)), Forward(1), Backward((1,)))


def test_plain_then_checkpointed_switches_checkpointing_off_for_the_first_forward() -> None:
    steps = program(accumulation="plain_then_checkpointed").steps

    assert steps == (Forward(0, checkpointed=False), Forward(1), Backward((0, 1)))


def test_a_retained_graph_is_gone_through_twice_and_kept_once() -> None:
    steps = program(backward="retained", accumulation="joint").steps

    assert steps[2:] == (Backward((0, 1), retain_graph=True), Backward((0, 1)))


def test_autograd_grad_takes_the_place_of_backward() -> None:
    assert program(backward="autograd.grad").steps == (Forward(0), AutogradGrad((0,)))


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


def test_microbatches_are_the_ones_read() -> None:
    assert program().microbatches == (0,)
    assert program(accumulation="joint").microbatches == (0, 1)
