"""When a boundary is active, what reaches its computation, and that it copies and pickles."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.checkpointing.steps import Block
from wcn_ckpt import InactiveBoundaryWarning
from wcn_ckpt.nn.modules import GradientCheckpointingMixin, configure_gradient_checkpointing


def linear_block(enable: bool = True) -> Block:
    torch.manual_seed(0)
    block = Block(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    block.use_checkpoint = enable
    return block


def norm_block() -> Block:
    block = Block(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    block.use_checkpoint = True
    return block


def test_a_fresh_boundary_is_disabled_and_holds_a_non_reentrant_checkpoint() -> None:
    block = linear_block(enable=False)

    assert block.gradient_checkpointing is False
    function = block._gradient_checkpointing_func
    assert isinstance(function, functools.partial)
    assert function.func is checkpoint
    assert function.keywords == {"use_reentrant": False}


def test_the_boundary_calls_its_computation_twice_when_active() -> None:
    block = linear_block()
    block(torch.randn(3, 4)).sum().backward()

    assert block.calls == 2


@pytest.mark.parametrize("inactive", ["disabled", "eval", "no_grad"])
def test_an_inactive_boundary_is_a_plain_call(inactive: str) -> None:
    block = linear_block(enable=inactive != "disabled").train(inactive != "eval")
    silent = contextlib.nullcontext()
    warns = pytest.warns(InactiveBoundaryWarning, match="Block .* is in eval mode")
    with torch.set_grad_enabled(inactive != "no_grad"), warns if inactive == "eval" else silent:
        out = block(torch.randn(3, 4))
    if out.requires_grad:
        out.sum().backward()

    assert block.calls == 1


def test_eval_mode_warns_once_and_only_while_gradients_are_recorded() -> None:
    block = linear_block().eval()
    with torch.no_grad():
        block(torch.randn(3, 4))
    with pytest.warns(InactiveBoundaryWarning):
        block(torch.randn(3, 4))
    block(torch.randn(3, 4))


def test_the_computation_is_looked_up_at_each_call() -> None:
    block = linear_block()
    original, calls = block._forward, []

    def replaced(x: Tensor) -> Tensor:
        calls.append(x)
        out: Tensor = original(x)
        return out

    block._forward = replaced
    block(torch.randn(3, 4)).sum().backward()

    assert len(calls) == 2


def test_use_checkpoint_is_an_alias_of_the_flag_in_both_directions() -> None:
    block = linear_block(enable=False)
    block.use_checkpoint = True
    assert block.gradient_checkpointing is True
    block.gradient_checkpointing = False
    assert block.use_checkpoint is False


def test_a_subclass_that_forgets_to_initialise_is_a_disabled_boundary() -> None:
    class Forgetful(GradientCheckpointingMixin, nn.Module):
        def forward(self, x: Tensor) -> Any:
            return self._gradient_checkpointed_call(torch.sin, x)

    block = Forgetful()
    assert torch.equal(block(torch.ones(2)), torch.ones(2).sin())
    assert configure_gradient_checkpointing(block) == 1


def test_dropped_activations_are_not_saved() -> None:
    saved: list[int] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x.untyped_storage().nbytes())
        return x

    x = torch.randn(64, 4)
    totals = []
    for enable in (False, True):
        block = linear_block(enable)
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            block(x)
        totals.append(sum(saved))

    assert totals[1] < totals[0]


@pytest.mark.parametrize("make", [linear_block, norm_block])
@pytest.mark.parametrize("used", [False, True])
def test_boundaries_pickle_deepcopy_and_save(make: Any, used: bool) -> None:
    block = make()
    if used:
        block(torch.randn(3, 4)).sum().backward()
    stored = io.BytesIO()
    torch.save(block, stored)
    stored.seek(0)

    for twin in (
        copy.deepcopy(block),
        pickle.loads(pickle.dumps(block)),
        torch.load(stored, weights_only=False),
    ):
        assert twin.use_checkpoint
        assert twin.state_dict().keys() == block.state_dict().keys()
        calls = twin.calls
        twin(torch.randn(3, 4)).sum().backward()
        assert twin.calls == calls + 2


def test_enabling_adds_no_parameter_buffer_or_state_dict_key() -> None:
    block = Block(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    keys = list(block.state_dict())
    block.use_checkpoint = True
    block(torch.randn(3, 4)).sum().backward()

    assert list(block.state_dict()) == keys
    assert not any("checkpoint" in key for key in keys)


def test_a_boundary_is_freed_without_the_garbage_collector() -> None:
    import gc
    import weakref

    block = norm_block()
    block(torch.randn(3, 4)).sum().backward()
    gc.disable()
    try:
        ref = weakref.ref(block)
        del block
        assert ref() is None
    finally:
        gc.enable()


def test_a_custom_checkpoint_function_gets_the_call_unchanged() -> None:
    block = linear_block()
    calls: list[tuple[Any, ...]] = []

    def custom(fn: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append((fn, args, kwargs))
        return fn(*args, **kwargs)

    block._gradient_checkpointing_func = custom
    x = torch.randn(3, 4)
    block(x)

    assert calls == [(block._forward, (x,), {})]


def test_a_custom_checkpoint_function_is_refused_where_state_is_kept() -> None:
    block = norm_block()
    block._gradient_checkpointing_func = lambda fn, *args: fn(*args)

    with pytest.raises(
        TypeError, match=r"Block keeps state .* torch\.utils\.checkpoint\.checkpoint"
    ):
        block(torch.randn(3, 4))


def test_frozen_norms_are_not_state() -> None:
    block = norm_block()
    block.body.eval()
    block._gradient_checkpointing_func = lambda fn, *args: fn(*args)

    assert block(torch.randn(3, 4)).shape == (3, 4)


def test_torch_debug_mode_works_with_kept_state() -> None:
    block = norm_block()
    with torch.utils.checkpoint.set_checkpoint_debug_enabled(True):
        block(torch.randn(3, 4)).sum().backward()

    assert block.body.get_submodule("1").num_batches_tracked == 1


def test_keywords_of_the_block_do_not_collide_with_those_of_torch() -> None:
    seen = []

    class Debuggable(GradientCheckpointingMixin, nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._init_gradient_checkpointing(use_checkpoint=True)
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, **kwargs: Any) -> Any:
            return self._gradient_checkpointed_call(self._forward, x, **kwargs)

        def _forward(self, x: Tensor, debug: str, fn: int, use_reentrant: bool) -> Tensor:
            seen.append((debug, fn, use_reentrant))
            out: Tensor = self.linear(x)
            return out.sin()

    Debuggable()(torch.randn(3, 4), debug="on", fn=3, use_reentrant=True).sum().backward()

    assert seen == [("on", 3, True)] * 2
