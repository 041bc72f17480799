"""Contexts, autocast, hooks, memory: faults that users of other checkpoints reported."""

from __future__ import annotations

import contextvars
import weakref
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import CheckpointError

from tests.checkpointing.public import Calling, Weighted, block_of, both, equal, grads
from wcn_ckpt import is_replaying


def test_contexts_unwind_when_forward_raises_pytorch_184018() -> None:
    value = contextvars.ContextVar("value", default=0)

    @contextmanager
    def setting() -> Any:
        token = value.set(1)
        try:
            yield
        finally:
            value.reset(token)

    def fail(body: nn.Module, x: Tensor) -> Tensor:
        raise ValueError("x")

    block = Calling(nn.Tanh(), fail, False)
    block.gradient_checkpointing_enable({"context_fn": lambda: (setting(), nullcontext())})
    with pytest.raises(ValueError, match="x"):
        block(torch.ones(1, requires_grad=True))
    assert value.get() == 0


def test_inputs_are_freed_with_the_output_pytorch_195586_torchtitan_1230() -> None:
    block = block_of(nn.Tanh())
    x = torch.ones(1000, requires_grad=True) * 1
    alive = weakref.ref(x)
    out = block(x)
    del x, out

    assert alive() is None


@pytest.mark.parametrize("warm", ["cold", "grad", "no_grad"])
@pytest.mark.parametrize("report", ["pytorch#141896", "TransformerEngine#791"])
def test_the_autocast_weight_cache(report: str, warm: str) -> None:
    def run(enable: bool) -> list[Any]:
        linear = nn.Linear(8, 8)
        block = block_of(nn.Sequential(linear, nn.Tanh(), linear), enable)
        x = torch.ones(2, 8)
        with torch.autocast("cpu", torch.bfloat16):
            if warm != "cold":
                with torch.set_grad_enabled(warm == "grad"):
                    linear(x)
            loss = block(x).float().sum()
        loss.backward()
        return grads(linear)

    assert equal(*both(run))


def test_save_on_cpu_around_a_boundary_pytorch_147565() -> None:
    def run(enable: bool) -> list[Any]:
        block = block_of(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)), enable)
        with save_on_cpu():
            out = block(torch.randn(2, 3, requires_grad=True).sin()).cos()
        out.sum().backward()
        return grads(block)

    assert equal(*both(run))


def test_a_hook_of_a_shared_parameter_fires_once_pytorch_81296() -> None:
    calls: list[Tensor] = []
    linear = nn.Linear(2, 2)
    linear.weight.register_hook(calls.append)  # type: ignore[no-untyped-call]
    block = block_of(linear)
    block(block(torch.ones(1, 2, requires_grad=True))).sum().backward()

    assert len(calls) == 1


def test_inputs_without_gradient_pytorch_7617() -> None:
    block = block_of(nn.Linear(2, 2))
    block(torch.ones(1, 2)).sum().backward()

    assert block.body.weight.grad is not None


@pytest.mark.parametrize("how", ["grad inside", "inputs="])
def test_autograd_grad_inside_and_inputs_pytorch_102223_51743(how: str) -> None:
    def energy(body: Any, x: Tensor) -> Tensor:
        out = (x * body.w).exp()
        if how == "inputs=":
            return out
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return g

    def run(enable: bool) -> list[Any]:
        block = Calling(Weighted(1.0, 2.0), energy, enable)
        x = torch.ones(2, requires_grad=True)
        inputs = list(block.parameters()) if how == "inputs=" else None
        block(x).sum().backward(inputs=inputs)
        return grads(block)

    assert equal(*both(run))


def test_intermediates_are_freed_pytorch_77284() -> None:
    seen: list[weakref.ref[Tensor]] = []

    def function(body: Any, x: Tensor) -> Tensor:
        a = (x * body.w).exp()
        seen.append(weakref.ref(a))
        return (a * 2).sin()

    out = Calling(Weighted(1.0, 2.0), function, True)(torch.ones(2))

    assert out.requires_grad
    assert seen[0]() is None


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_replay_that_would_save_more_pytorch_160781(early_stop: bool) -> None:
    def function(body: Any, x: Tensor) -> Tensor:
        y = (x * body.w).exp()
        return y.sin() if is_replaying() else y

    def run(enable: bool) -> list[Any]:
        block = Calling(Weighted(1.0, 2.0), function, False)
        if enable:
            block.gradient_checkpointing_enable({"early_stop": early_stop})
        block(torch.ones(2)).sum().backward()
        return grads(block)

    if early_stop:
        assert equal(*both(run))
    else:
        with pytest.raises(CheckpointError, match="more tensors during recomputation"):
            run(True)
