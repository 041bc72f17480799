"""Generators that are replaced from one forward to the next, or made when the block first draws."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler

from tests.checkpointing.public import both
from wcn_ckpt import make_checkpointable

GENERATOR: Any = np.random.default_rng(0)
LATE: Any = None


class Drawing(nn.Module):
    """Scales its input with a number that `draw` takes from what is `held`."""

    def __init__(self, draw: Callable[[Any], float], held: Any = None) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.draw, self.held = draw, held

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x * self.draw(self)).sin()


def trained(
    make: Callable[[], nn.Module], before: Callable[[Any, int], None] = lambda block, step: None
) -> Callable[[bool], list[Any]]:
    """Return a program of three steps, with something done before each."""

    def run(enable: bool) -> list[Any]:
        block, seen = make(), []
        if enable:
            make_checkpointable(block, lambda module: module is block, use_checkpoint=True)
        for step in range(3):
            before(block, step)
            block.zero_grad()
            block(torch.ones(2)).sum().backward()
            seen.append(block.w.grad.tolist())  # type: ignore[union-attr]  # there is one
        return seen

    return run


def set_attribute(block: Any, step: int) -> None:
    block.held = np.random.default_rng(step)


def set_entry(block: Any, step: int) -> None:
    block.held["a"] = np.random.default_rng(step)


def set_item(block: Any, step: int) -> None:
    block.held[0] = np.random.default_rng(step)


def set_global(block: Any, step: int) -> None:
    global GENERATOR
    GENERATOR = np.random.default_rng(step)


@pytest.mark.parametrize(
    ("draw", "held", "replace"),
    [
        (lambda block: block.held.random(), lambda: None, set_attribute),
        (lambda block: block.held["a"].random(), dict, set_entry),
        (lambda block: block.held[0].random(), lambda: [None], set_item),
        (lambda block: GENERATOR.random(), lambda: None, set_global),
    ],
    ids=["attribute", "entry", "item", "global"],
)
def test_a_generator_that_is_set_anew_for_each_step(
    draw: Callable[[Any], float], held: Callable[[], Any], replace: Callable[[Any, int], None]
) -> None:
    plain, checkpointed = both(trained(lambda: Drawing(draw, held()), replace))

    assert checkpointed == plain


def replacing(block: Any) -> None:
    block.held = np.random.default_rng(1)


def forgetting(block: Any) -> None:
    block.held = None


@pytest.mark.parametrize("then", [replacing, forgetting])
def test_a_generator_that_is_replaced_before_the_backward_pass(
    then: Callable[[Any], None],
) -> None:
    def run(enable: bool) -> Any:
        block = Drawing(lambda block: block.held.random(), np.random.default_rng(0))
        if enable:
            make_checkpointable(block, lambda module: module is block, use_checkpoint=True)
        loss = block(torch.ones(2)).sum()
        then(block)
        if block.held is not None:
            loss = loss + block(2 * torch.ones(2)).sum()
        loss.backward()
        assert block.w.grad is not None
        left = None if block.held is None else block.held.bit_generator.state
        return block.w.grad.tolist(), left

    plain, checkpointed = both(run)

    assert checkpointed == plain


def made_in_attribute(block: Any) -> float:
    if block.held is None:
        block.held = torch.Generator().manual_seed(7)
    return float(torch.rand((), generator=block.held))


def made_in_new_attribute(block: Any) -> float:
    if not hasattr(block, "late"):
        block.late = random.Random(7)
    return float(block.late.random())


def made_in_dictionary(block: Any) -> float:
    return float(block.held.setdefault("a", np.random.default_rng(7)).random())


def made_in_global(block: Any) -> float:
    global LATE
    if LATE is None:
        LATE = np.random.default_rng(7)
    return float(LATE.random())


@pytest.mark.parametrize(
    ("draw", "held"),
    [
        (made_in_attribute, lambda: None),
        (made_in_new_attribute, lambda: None),
        (made_in_dictionary, dict),
        (made_in_global, lambda: None),
    ],
    ids=["attribute", "new attribute", "dictionary", "global"],
)
@pytest.mark.parametrize("first", [0, 2], ids=["in the first forward", "in the third"])
def test_a_generator_that_a_forward_makes(
    draw: Callable[[Any], float], held: Callable[[], Any], first: int
) -> None:
    def run(enable: bool) -> Any:
        global LATE
        LATE = None
        steps = iter(range(10))
        early = [True]

        def draw_late(block: Any) -> float:
            return 1.0 if early[0] else draw(block)

        def before(block: Any, step: int) -> None:
            early[0] = next(steps) < first

        return trained(lambda: Drawing(draw_late, held()), before)(enable)

    plain, checkpointed = both(run)

    assert checkpointed == plain


def test_a_generator_that_is_forgotten_and_made_again() -> None:
    def before(block: Any, step: int) -> None:
        block.held = None

    plain, checkpointed = both(trained(lambda: Drawing(made_in_attribute), before))

    assert checkpointed == plain and plain[0] == plain[1]


class Copied:
    def __init__(self) -> None:
        self.inner = np.random.default_rng(0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    inner: np.random.Generator


@functools.lru_cache
def cached() -> np.random.Generator:
    return np.random.default_rng(0)


@functools.cache
def cached_without_limit() -> np.random.Generator:
    return np.random.default_rng(0)


HIDDEN: dict[str, tuple[Callable[[Any], float], Callable[[], Any]]] = {
    "object with __getstate__": (lambda block: block.held.inner.random(), Copied),
    "frozen dataclass with slots": (
        lambda block: block.held.inner.random(),
        lambda: Frozen(np.random.default_rng(0)),
    ),
    "result of a cached function": (lambda block: cached().random(), lambda: None),
    "result of a cache without limit": (
        lambda block: cached_without_limit().random(),
        lambda: None,
    ),
    "bound method": (lambda block: block.held(), lambda: random.Random(3).random),
    "bit generator": (
        lambda block: np.random.Generator(block.held).random(),
        lambda: np.random.PCG64(1),
    ),
    "sampler": (
        lambda block: float(list(block.held)[0]),
        lambda: RandomSampler(range(5), generator=torch.Generator().manual_seed(0)),
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_where_a_generator_is_found(name: str) -> None:
    draw, held = HIDDEN[name]

    def run(enable: bool) -> Any:
        for function in (cached, cached_without_limit):
            function.cache_clear()
            function()
        return trained(lambda: Drawing(draw, held()))(enable)

    plain, checkpointed = both(run)

    assert checkpointed == plain


def test_the_generator_of_the_system_has_no_state_and_is_left_alone() -> None:
    plain, checkpointed = both(trained(lambda: Drawing(lambda block: 1.0, random.SystemRandom())))

    assert checkpointed == plain
