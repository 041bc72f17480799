"""Torch's CPU generator is copied when it has moved, and only then."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.checkpointing.steps import STYLES, Block, assert_checkpointing_changes_nothing
from wcn_ckpt.checkpointing.replay import cpu_generator as module
from wcn_ckpt.checkpointing.replay.cpu_generator import CpuGenerator

Act = Callable[[torch.Generator], Any]

ACTS: dict[str, Act] = {
    "rand": lambda g: torch.rand(1, generator=g),
    "double": lambda g: torch.rand(1, generator=g, dtype=torch.float64),
    "one normal": lambda g: torch.randn(1, generator=g),
    "one double normal": lambda g: torch.randn(1, generator=g, dtype=torch.float64),
    "many normals": lambda g: torch.randn(64, generator=g),
    "randint": lambda g: torch.randint(5, (1,), generator=g),
    "randperm": lambda g: torch.randperm(5, generator=g),
    "bernoulli": lambda g: torch.full((2,), 0.5).bernoulli_(generator=g),
    "exponential": lambda g: torch.empty(1).exponential_(generator=g),
    "all words": lambda g: torch.randint(2, (624,), generator=g),
    "seed": lambda g: g.manual_seed(7),
}


on_known_layout = pytest.mark.skipif(
    platform.python_implementation() != "CPython" or platform.machine() != "x86_64",
    reason="the layout of a generator was looked up for CPython on x86_64",
)


def _words(generator: torch.Generator) -> bytes:
    return bytes(generator.get_state().tolist())


@on_known_layout
def test_the_words_are_readable_here() -> None:
    assert CpuGenerator(torch.Generator()).readable


@pytest.mark.parametrize("readable", [pytest.param(True, marks=on_known_layout), False])
@given(before=st.lists(st.sampled_from(sorted(ACTS))), act=st.sampled_from(sorted(ACTS)))
def test_every_draw_is_seen_and_taken_back(readable: bool, before: list[str], act: str) -> None:
    generator = torch.Generator().manual_seed(3)
    with pytest.MonkeyPatch.context() as patch:
        if not readable:
            patch.setattr(module, "_offset_of_engine", lambda: None)
        watched = CpuGenerator(generator)
    for name in before:
        ACTS[name](generator)
    words, state = _words(generator), watched.present()
    if readable:
        assert watched.present() is state
    assert bytes(state.state.tolist()) == words

    ACTS[act](generator)
    moved = _words(generator)
    assert (watched.present().state.tolist() == state.state.tolist()) == (moved == words)
    later = watched.present()
    watched.set(state)
    assert _words(generator) == words
    watched.set(later)
    assert _words(generator) == moved


class _ForkedNoise(nn.Module):
    """Draws from a copy of the generator, which the block itself does not move."""

    def __init__(self, forked: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forked = forked
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.forked(x)).tanh()


def _by_fork(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return torch.rand_like(x)


def _by_hand(x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    noise = torch.rand_like(x)
    torch.set_rng_state(state)
    return noise


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("forked", [_by_fork, _by_hand])
def test_numbers_that_leave_no_trace_in_the_generator(
    forked: Callable[[Tensor], Tensor], style: str
) -> None:
    """What a forward draws and takes back depends on a state that has moved until its replay."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(_ForkedNoise(forked)), nn.Dropout(0.5), Block(_ForkedNoise(forked)))
    assert_checkpointing_changes_nothing(model, style, torch.randn(6, 4))


@on_known_layout
def test_a_step_that_draws_nothing_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(nn.Linear(4, 4))
    block.gradient_checkpointing_enable()
    x = torch.randn(6, 4)
    block(x).sum().backward()
    monkeypatch.setattr(module.cpu_generator, "_generator", None)
    block(x).sum().backward()
