from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from harness.arms import ARMS, ORDINARY
from harness.equivalence import equal
from harness.job import make_job
from harness.program import execute
from harness.trace import Trace
from matrix.case import Case, parse_case
from matrix.programs import BACKWARDS

CHECKPOINTED = ARMS[0].install
FAULTY = f"{Path(__file__).parent}/faulty_arms.py"


def run(case: str, arm: str = ORDINARY, seed: int = 0) -> Trace:
    return execute(make_job(parse_case(case), arm=arm, seed=seed), arm, rank=0)


def shapes(values: Mapping[str, torch.Tensor | None]) -> dict[str, object]:
    return {name: None if value is None else tuple(value.shape) for name, value in values.items()}


def test_points_follow_the_program() -> None:
    assert list(run("basic,accumulation=sequential").points) == [
        *("forward[0]", "backward[0]", "start of forward[1]", "forward[1]", "backward[1]", "end"),
    ]
    assert list(run("basic,backward=retained,accumulation=joint").points) == [
        *("forward[0]", "start of forward[1]", "forward[1]", "backward[0]", "backward[1]", "end"),
    ]


def test_a_backward_leaves_gradients_of_parameters_and_inputs() -> None:
    trace = run("basic")
    seen = trace.points["backward[0]"]

    expected = {name: tuple(p.shape) for name, p in trace.module.named_parameters()}
    assert shapes(seen["gradients"]) == expected
    (gradient,) = seen["input_gradients"].values()
    assert gradient.shape[1] == 8 and gradient.abs().sum() > 0
    assert set(seen["buffers"]) == {name for name, _ in trace.module.named_buffers()}


def test_autograd_grad_returns_gradients_and_sets_none() -> None:
    seen = run("basic,backward=autograd.grad").points["backward[0]"]

    assert set(seen["gradients"].values()) == {None}
    assert all(value is not None for value in seen["returned_gradients"].values())
    assert [name for name in seen["returned_gradients"] if name.startswith("inputs.")] == [
        "inputs.microbatch0.0"
    ]


def test_an_input_of_a_later_forward_has_no_gradient_yet() -> None:
    seen = run("basic,accumulation=sequential").points["backward[0]"]["input_gradients"]

    assert shapes(seen)["microbatch1.0"] is None


@pytest.mark.parametrize("backward", BACKWARDS)
def test_calls_are_counted_in_and_outside_forwards(backward: str) -> None:
    trace = run(f"basic,backward={backward},accumulation=joint", CHECKPOINTED)

    assert [calls.total() for calls in trace.forward_calls] == [1, 1]
    assert trace.replays == (4 if backward == "retained" else 2)
    assert run(f"basic,backward={backward}").replays == 0


def test_plain_then_checkpointed_checkpoints_the_second_forward_alone() -> None:
    assert run("basic,accumulation=plain_then_checkpointed", CHECKPOINTED).replays == 1


def test_autocast_reaches_the_block() -> None:
    full, half = run("basic"), run("basic,autocast=bf16")

    assert not equal(full.points, half.points)


def test_a_seed_decides_weights_and_data_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    first = run("basic", seed=3)
    torch.manual_seed(2)

    assert equal(first.points, run("basic", seed=3).points)
    assert not equal(first.points, run("basic", seed=4).points)


def test_running_statistics_can_be_off() -> None:
    assert run("basic,running_stats=off").points["forward[0]"]["buffers"] == {}


@pytest.mark.parametrize(
    ("arm", "point", "error"),
    [
        ("not_installable", "set-up", "LookupError: this arm cannot be installed"),
        ("raise_in_forward", "forward[0]", "ArithmeticError: planted on rank 1"),
    ],
)
def test_an_exception_is_recorded_where_it_was_raised(
    monkeypatch: pytest.MonkeyPatch, arm: str, point: str, error: str
) -> None:
    monkeypatch.setenv("RANK", "1")
    raised = run("basic", f"{FAULTY}:{arm}").raised

    assert raised is not None
    assert (raised.point, raised.error) == (point, error)
    assert "faulty_arms.py" in raised.traceback


def test_the_case_seed_follows_from_the_seed_and_the_case() -> None:
    def seed_of(case: Case, seed: int) -> int:
        return make_job(case, arm=ORDINARY, seed=seed).case_seed

    basic, joint = parse_case("basic"), parse_case("basic,accumulation=joint")
    assert seed_of(basic, 0) == seed_of(basic, 0)
    assert len({seed_of(basic, 0), seed_of(basic, 1), seed_of(joint, 0)}) == 3
