from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
        *("set-up", "start of forward[0]", "forward[0]", "backward[0]"),
        *("start of forward[1]", "forward[1]", "backward[1]", "step[0]", "end"),
    ]
    assert list(run("basic,backward=retained,accumulation=joint").points) == [
        *("set-up", "start of forward[0]", "forward[0]", "start of forward[1]", "forward[1]"),
        *("backward[0]", "backward[1]", "step[0]", "end"),
    ]
    assert list(run("readme,steps=3").points)[-3:] == ["backward[2]", "step[2]", "end"]


def test_an_optimizer_step_moves_parameters_along_their_momentum() -> None:
    points = run("readme,steps=3").points

    for name, start in points["set-up"]["parameters"].items():
        value, momentum = start, torch.zeros_like(start)
        for step in range(3):
            gradient = points[f"backward[{step}]"]["gradients"][name]
            momentum = 0.9 * momentum + gradient
            value = value - 0.1 * momentum
            seen = points[f"step[{step}]"]
            torch.testing.assert_close(seen["parameters"][name], value)
            torch.testing.assert_close(seen["momenta"][name], momentum)


def test_the_optimizer_uses_the_gradients_that_autograd_grad_returned() -> None:
    points = run("readme,backward=autograd.grad,accumulation=sequential").points

    for name, start in points["set-up"]["parameters"].items():
        total = sum(points[f"backward[{k}]"]["returned_gradients"][name] for k in range(2))
        torch.testing.assert_close(points["step[0]"]["parameters"][name], start - 0.1 * total)


def test_a_run_that_follows_another_starts_each_forward_where_that_one_did() -> None:
    job = make_job(parse_case("codebook,steps=3,accumulation=joint"), arm=ORDINARY, seed=0)
    leader = execute(job, ORDINARY, rank=1)

    other = execute(replace(job, case_seed=job.case_seed + 1), ORDINARY, rank=1, follow=leader)
    again = execute(job, ORDINARY, rank=1, follow=leader)

    for point in ("set-up", "start of forward[5]", "step[2]"):
        for group in ("parameters", "buffers"):
            if group in leader.points[point] and not (point == "set-up" and group == "buffers"):
                for name, value in leader.points[point][group].items():
                    if not (point.startswith("step") and group == "buffers"):
                        assert torch.equal(other.points[point][group][name], value)
    assert equal(
        {"g": {"g": leader.points["backward[2]"]["gradients"]}},
        {"g": {"g": again.points["backward[2]"]["gradients"]}},
    )


def test_ranks_build_different_weights() -> None:
    job = make_job(parse_case("readme"), arm=ORDINARY, seed=0)
    first, second = (execute(job, ORDINARY, rank).points["set-up"] for rank in (0, 1))

    assert not torch.equal(
        first["parameters"]["linear.weight"], second["parameters"]["linear.weight"]
    )


@pytest.mark.parametrize("enable", ["model_call", "constructor", "injected", "user_context"])
def test_checkpointing_is_on_however_it_was_enabled_and_off_in_the_ordinary_arm(
    enable: str,
) -> None:
    assert run(f"readme,enable={enable}", CHECKPOINTED).replays == 1
    assert run(f"readme,enable={enable}").replays == 0


def test_norm_calls_of_logical_forwards_are_watched_and_replays_are_not() -> None:
    job = make_job(parse_case("called-twice,accumulation=joint"), arm=CHECKPOINTED, seed=0)

    trace = execute(job, CHECKPOINTED, rank=0, watch_norms=True)

    assert [[call.name for call in calls] for calls in trace.norm_calls] == [["block.norm"] * 2] * 2


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
    assert trace.replays == 2 * {"retained": 2, "retained3": 3}.get(backward, 1)
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


def test_a_device_that_is_not_there_is_named() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    raised = run("basic,device=cuda").raised

    assert raised is not None
    assert "needs a CUDA device" in raised.error


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


class Holding(torch.autograd.Function):
    """Holds a module in its node, as the functions of FSDP2 do."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, module: nn.Module) -> Tensor:  # type: ignore[override]
        ctx.module = module
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def holding(module: nn.Module) -> Callable[[bool], None]:
    module.register_forward_hook(lambda module, _, output: Holding.apply(output, module))
    return lambda on: None


def test_a_run_leaves_nothing_in_memory_that_its_trace_does_not_hold() -> None:
    trace = run("readme,backward=retained", f"{__file__}:holding")
    assert trace.raised is None
    module = weakref.ref(trace.module)

    del trace
    gc.collect()

    assert module() is None
