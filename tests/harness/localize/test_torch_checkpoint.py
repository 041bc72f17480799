"""A recording of torch's checkpoint, also where it is called or made in a way nobody expects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor, nn
from torch.distributed._composable import checkpoint as composable_checkpoint

from harness.localize import Recorder
from harness.localize.calls import Recording
from harness.trace import Trace

HOOK = "_checkpoint_hook"
GENERATOR = "_checkpoint_without_reentrant_generator"


class Model(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.block, x)


def plain(block: nn.Module, x: Tensor) -> Any:
    return block(x)


def checkpointed(block: nn.Module, x: Tensor) -> Any:
    return torch_checkpoint.checkpoint(block, x, use_reentrant=False)


def selective(block: nn.Module, x: Tensor) -> Any:
    def contexts() -> Any:
        return torch_checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

    return torch_checkpoint.checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def nothing_recorded_inside(block: nn.Module, x: Tensor) -> Any:
    """A call without gradients, around one that makes them."""

    def inner(x: Tensor) -> Any:
        with torch.enable_grad():
            return checkpointed(block, x)

    with torch.no_grad():
        return torch_checkpoint.checkpoint(inner, x, use_reentrant=False)


def recorded(model: nn.Module) -> Recording:
    """Train one step under a recorder; it must give the gradients that it gives without."""
    x = torch.randn(3, 4)
    expected = copy.deepcopy(model)
    expected(x).sum().backward()
    recorder = Recorder()
    with recorder.watch(Trace(model)):
        model(x).sum().backward()
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert parameter.grad is not None and other.grad is not None
        assert torch.equal(parameter.grad, other.grad)
    return recorder.recording


@pytest.mark.parametrize("call", [checkpointed, selective, nothing_recorded_inside])
def test_a_region_is_linked_with_its_replay(call: Callable[..., Tensor]) -> None:
    recording = recorded(Model(call))

    assert [replay.forward.kind for replay in recording.replays] == ["region"]
    assert recording.replays[0].call is not None


def test_no_region_means_no_replay() -> None:
    assert recorded(Model(plain)).replays == []


def test_a_caller_that_holds_the_generator_itself_is_left_alone() -> None:
    model = Model(plain)
    composable_checkpoint(model.block)
    x = torch.randn(3, 4)
    with Recorder().watch(Trace(model)):
        model(x).sum().backward()

    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_generator_of_another_form_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(n for n in (f"{GENERATOR}_impl", GENERATOR) if hasattr(torch_checkpoint, n))
    original = getattr(torch_checkpoint, name)

    def other(function: Any, *values: Any, **keywords: Any) -> Any:
        assert getattr(torch_checkpoint, name) is other
        return original(function, *values, **keywords)

    monkeypatch.setattr(torch_checkpoint, name, other)
    assert recorded(Model(checkpointed)).forwards


def test_hooks_of_another_form_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(torch_checkpoint, HOOK)

    def other(region: Any) -> Any:
        assert getattr(torch_checkpoint, HOOK) is other
        return original(region)

    monkeypatch.setattr(torch_checkpoint, HOOK, other)
    assert recorded(Model(checkpointed)).forwards
