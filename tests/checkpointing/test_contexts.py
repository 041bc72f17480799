"""A user's context function, a block's own hook, and the state of the boundary compose."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from tests.checkpointing.steps import Block
from wcn_ckpt.checkpointing.contexts import (
    HOOKS_KEYWORD,
    ContextFunction,
    ContextPair,
    compose_context_functions,
)
from wcn_ckpt.nn.modules import preserve_module_buffers


class Events(list[str]):
    def context(self, name: str) -> contextlib.AbstractContextManager[None]:
        events = self

        class Recorded(contextlib.AbstractContextManager[None]):
            def __enter__(self) -> None:
                events.append(f"enter {name}")

            def __exit__(self, *exc: object) -> None:
                events.append(f"exit {name}")

        return Recorded()

    def pair(self, who: str) -> ContextPair:
        return self.context(f"{who} forward"), self.context(f"{who} recompute")


class Hooked(Block):
    def __init__(self, body: nn.Module, events: Events) -> None:
        super().__init__(body)
        self.events = events

    def _get_gradient_checkpointing_context_fn(self) -> ContextFunction | None:
        return lambda: self.events.pair("block")


def body() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh())


def test_a_users_context_wraps_forward_and_recompute_once_each_and_state_is_kept() -> None:
    events = Events()
    block = Block(body())
    block.gradient_checkpointing_enable({"context_fn": lambda: events.pair("user")})
    block(torch.randn(5, 4)).sum().backward()

    assert events == [
        "enter user forward",
        "exit user forward",
        "enter user recompute",
        "exit user recompute",
    ]
    assert block.body.get_submodule("1").num_batches_tracked == 1


def test_the_users_context_is_outside_the_blocks_own() -> None:
    events = Events()
    block = Hooked(body(), events)
    block.gradient_checkpointing_enable({"context_fn": lambda: events.pair("user")})
    block(torch.randn(5, 4)).sum().backward()

    assert events[:4] == [
        "enter user forward",
        "enter block forward",
        "exit block forward",
        "exit user forward",
    ]
    assert events[4:] == [e.replace("forward", "recompute") for e in events[:4]]


def test_a_hook_makes_the_boundary_keep_state() -> None:
    block = Hooked(nn.Linear(4, 4), Events())
    block.use_checkpoint = True
    block._gradient_checkpointing_func = lambda fn, *args: fn(*args)

    with pytest.raises(TypeError, match="Hooked keeps state"):
        block(torch.randn(5, 4))


def test_composed_contexts_are_entered_again_on_a_retained_graph() -> None:
    events = Events()
    block = Hooked(body(), events)
    block.gradient_checkpointing_enable({"context_fn": lambda: events.pair("user")})
    loss = block(torch.randn(5, 4)).sum()
    loss.backward(retain_graph=True)
    loss.backward()

    assert events.count("enter user recompute") == events.count("exit user recompute") == 2
    assert events.count("enter block recompute") == events.count("exit block recompute") == 2


def test_entered_contexts_are_left_when_a_later_one_fails() -> None:
    events = Events()

    @contextlib.contextmanager
    def failing() -> Iterator[None]:
        raise RuntimeError("cannot enter")
        yield

    composed = compose_context_functions(
        lambda: events.pair("first"), lambda: (failing(), failing())
    )
    forward, _ = composed()
    with pytest.raises(RuntimeError, match="cannot enter"), forward:
        raise AssertionError("not reached")

    assert events == ["enter first forward", "exit first forward"]


def test_composed_contexts_nest() -> None:
    events = Events()
    forward, _ = compose_context_functions(lambda: events.pair("a"), lambda: events.pair("b"))()
    with forward, forward:
        pass

    assert events.count("enter a forward") == events.count("exit b forward") == 2


@pytest.mark.parametrize("kwargs", [None, {"context_fn": lambda: Events().pair("user")}])
@pytest.mark.parametrize("bad", [3, lambda: None, lambda: (1, 2), lambda: [None, None]])
def test_a_bad_hook_is_named(bad: Any, kwargs: Any) -> None:
    class Bad(Block):
        def _get_gradient_checkpointing_context_fn(self) -> ContextFunction | None:
            hook: ContextFunction = bad
            return hook

    block = Bad(nn.Linear(4, 4))
    block.gradient_checkpointing_enable(kwargs)
    with pytest.raises(TypeError, match="checkpoint context function must"):
        block(torch.randn(5, 4))


def save_matmuls(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    matmul = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if matmul else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.skipif(
    HOOKS_KEYWORD not in inspect.signature(checkpoint).parameters,
    reason="selective checkpointing of this torch knows no saved-tensor hooks",
)
@pytest.mark.parametrize("hooked", [False, True], ids=["alone", "with a hook of the block"])
@pytest.mark.parametrize("respect", [False, True])
def test_selective_checkpointing_respects_saved_tensor_hooks_if_told(
    respect: bool, hooked: bool
) -> None:
    block = Hooked(body(), Events()) if hooked else Block(body())
    block.gradient_checkpointing_enable(
        {
            "context_fn": lambda: create_selective_checkpoint_contexts(save_matmuls),
            HOOKS_KEYWORD: respect,
        }
    )
    x, packed = torch.randn(5, 4), []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = block(x).sum()
    assert any(not torch.equal(tensor, x) for tensor in packed) is respect  # x: torch's own
    loss.backward()
    assert all(parameter.grad is not None for parameter in block.parameters())


def test_a_word_for_the_saved_tensor_hooks_is_checked() -> None:
    if HOOKS_KEYWORD in inspect.signature(checkpoint).parameters:
        with pytest.raises(TypeError, match="must be True, False or None, got 'yes'"):
            Block(body()).gradient_checkpointing_enable({HOOKS_KEYWORD: "yes"})
    else:
        with pytest.raises(ValueError, match="Unknown gradient checkpointing keyword"):
            Block(body()).gradient_checkpointing_enable({HOOKS_KEYWORD: True})


def test_selective_checkpointing_composes_with_kept_state() -> None:
    torch.manual_seed(0)
    block = Block(body())
    x = torch.randn(5, 4)
    block(x).sum().backward()
    expected = [p.grad for p in block.parameters()]
    block.zero_grad()
    norm = block.body.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm1d)
    norm.reset_running_stats()
    block.gradient_checkpointing_enable(
        {"context_fn": lambda: create_selective_checkpoint_contexts(save_matmuls)}
    )
    block(x).sum().backward()

    assert norm.num_batches_tracked == 1
    for parameter, grad in zip(block.parameters(), expected, strict=True):
        assert parameter.grad is not None and grad is not None
        assert torch.equal(parameter.grad, grad)


def test_preserve_module_buffers_as_a_blocks_own_hook() -> None:
    class Counting(nn.Module):
        steps: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return x.sin()

    class Preserving(Block):
        def _get_gradient_checkpointing_context_fn(self) -> ContextFunction | None:
            return lambda: (contextlib.nullcontext(), preserve_module_buffers(self, ["steps"]))

    block = Preserving(Counting())
    block.use_checkpoint = True
    loss = block(torch.randn(5, 4, requires_grad=True)).sum()
    loss.backward(retain_graph=True)
    loss.backward()

    assert block.body.steps == 1
