"""A boundary keeps nothing of a call once its graph is gone, and does not grow."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.stateful import (
    Codebook,
    Drawing,
    Filling,
    OwnNorm,
    Rebinding,
    new_spectral_norm,
    with_tail,
)
from tests.checkpointing.steps import Block
from wcn_ckpt import GradientCheckpointingMixin, configure_gradient_checkpointing
from wcn_ckpt.checkpointing.replay import redirect


@pytest.fixture(scope="module", autouse=True)
def collections_see_new_objects_alone() -> Iterator[None]:
    """Set aside what the packages hold: to look through it takes half a second each time."""
    # The first call of a process imports more of torch, which leaves cycles.
    block_of("no state", 1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Taking(GradientCheckpointingMixin, nn.Module):
    """A stateful block with a keyword tensor and a nested one."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint=True)
        self.body = body

    def forward(self, x: Tensor, *, scale: Tensor, more: dict[str, Any]) -> Any:
        return self._gradient_checkpointed_call(self._forward, x, scale=scale, more=more)

    def _forward(self, x: Tensor, scale: Tensor, more: dict[str, Any]) -> Any:
        return self.body(x * scale + more["shift"][0])


BODIES: dict[str, Callable[[], nn.Module]] = {
    "no state": lambda: with_tail(nn.LayerNorm(6)),
    "norm": lambda: with_tail(nn.BatchNorm1d(6)),
    "own norm": lambda: with_tail(OwnNorm()),
    "codebook": lambda: with_tail(Codebook()),
    "rebound": lambda: with_tail(Rebinding()),
    "filled": lambda: with_tail(Filling()),
    "spectral norm": lambda: with_tail(new_spectral_norm()),
    "draws": lambda: with_tail(Drawing(lambda _: np.random.rand()), nn.Dropout(0.2)),
    "nested": lambda: with_tail(Block(with_tail(Codebook(), nn.BatchNorm1d(6))), OwnNorm()),
}


def arguments() -> tuple[Tensor, dict[str, Any]]:
    x = torch.randn(9, 6, requires_grad=True) * 1
    return x, {"scale": torch.randn(6), "more": {"shift": [torch.randn(9, 6)]}}


def tensors(x: Tensor, keywords: dict[str, Any]) -> list[weakref.ref[Tensor]]:
    nested = [x, keywords["scale"], *keywords["more"]["shift"]]
    return [weakref.ref(tensor) for tensor in nested]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Tensor]]:
    """Weak references to every copy of an entry value that is made."""
    made: list[weakref.ref[Tensor]] = []
    original = redirect._copy

    def recording(*args: Any) -> Tensor:
        copy = original(*args)
        made.append(weakref.ref(copy))
        return copy

    monkeypatch.setattr(redirect, "_copy", recording)
    return made


def block_of(name: str, warm: int) -> Taking:
    torch.manual_seed(0)
    block = Taking(BODIES[name]())
    configure_gradient_checkpointing(block)
    for _ in range(warm):
        x, keywords = arguments()
        block(x, **keywords).sum().backward()
    return block


def alive(references: list[weakref.ref[Tensor]]) -> int:
    return sum(reference() is not None for reference in references)


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("how", ["dropped", "backward", "retained", "autograd.grad"])
def test_inputs_and_entry_values_die_with_the_graph(
    how: str, name: str, warm: int, copies: list[weakref.ref[Tensor]]
) -> None:
    block = block_of(name, warm)
    copies.clear()
    x, keywords = arguments()
    given = tensors(x, keywords)
    loss = block(x, **keywords).sum()
    if how == "backward":
        loss.backward()
    elif how == "retained":
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    elif how == "autograd.grad":
        torch.autograd.grad(loss, list(block.parameters())[:1])
    del x, keywords, loss

    assert alive(given) == 0
    assert alive(copies) == 0


@pytest.mark.parametrize("name", BODIES)
def test_after_backward_nothing_is_kept_while_the_loss_lives(
    name: str, copies: list[weakref.ref[Tensor]]
) -> None:
    block = block_of(name, 3)
    copies.clear()
    x, keywords = arguments()
    given = tensors(x, keywords)
    loss = block(x, **keywords).sum()
    loss.backward()
    del x, keywords

    assert alive(given[1:]) == 0
    assert alive(copies) == 0
    assert loss is not None


@pytest.mark.parametrize("name", BODIES)
def test_a_failed_forward_keeps_nothing(name: str, copies: list[weakref.ref[Tensor]]) -> None:
    block = block_of(name, 1)
    copies.clear()
    x, keywords = arguments()
    given = tensors(x, keywords)
    keywords["more"]["shift"].append(None)
    keywords["more"]["shift"][0] = "no tensor"
    try:
        block(x, **keywords)
    except TypeError as error:
        error.__traceback__ = None
        error.__context__ = None
    else:
        raise AssertionError("the forward fails")
    del x, keywords

    assert alive(given) == 0
    assert alive(copies) == 0


def test_a_block_is_freed_with_everything_it_learned() -> None:
    block = block_of("nested", 3)
    reference = weakref.ref(block)
    held = [weakref.ref(tensor) for tensor in (*block.parameters(), *block.buffers())]
    del block

    assert reference() is None
    assert alive(held) == 0


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize("name", BODIES)
def test_many_calls_do_not_grow(name: str) -> None:
    block = block_of(name, 20)
    x, keywords = arguments()
    x = x.detach()

    def steps(count: int) -> None:
        for _ in range(count):
            block(x, **keywords).sum().backward()
            block.zero_grad()
            block(x, **keywords)

    def bytes_after(count: int) -> int:
        steps(count)
        gc.collect()
        sys._clear_type_cache()  # it keeps each attribute name that torch's parametrization makes
        return tracemalloc.get_traced_memory()[0]

    steps(30)
    before = objects()
    tracemalloc.start()
    try:
        sizes = [bytes_after(count) for count in (10, 25, 25, 25)]
    finally:
        tracemalloc.stop()

    assert objects() - before < 50
    # A leak grows each time; something that Python allocates once does not.
    assert median(b - a for a, b in pairwise(sizes)) < 2_500


def test_thousands_of_small_calls_leave_as_many_objects_as_before() -> None:
    torch.manual_seed(0)
    block = Block(nn.Sequential(nn.BatchNorm1d(2), Scaling()))
    configure_gradient_checkpointing(block)
    x = torch.ones(2, 2)

    def steps(count: int) -> None:
        for _ in range(count):
            block(x).sum().backward()

    steps(200)
    before = objects()
    steps(3_000)

    assert objects() - before < 50


class Scaling(nn.Module):
    """Counts its calls in a buffer."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x.sin()
