"""Whatever a block writes in forward is left as the ordinary run leaves it, undeclared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.ao import quantization

from tests.checkpointing.stateful import (
    Alternating,
    Codebook,
    Deleting,
    Filling,
    Fixed,
    Nested,
    OuterWrites,
    OwnNorm,
    Rebinding,
    Recurrent,
    Registering,
    Twice,
    Views,
    new_spectral_norm,
    old_spectral_norm,
    three_deep,
    tied_codebooks,
    with_tail,
)
from tests.checkpointing.steps import STYLES, Block, assert_checkpointing_changes_nothing

BODIES: dict[str, Callable[[], nn.Module]] = {
    "own norm class": lambda: with_tail(OwnNorm()),
    "own norm class, momentum 1": lambda: with_tail(OwnNorm(momentum=1.0)),
    "spectral norm, old form": lambda: with_tail(old_spectral_norm()),
    "spectral norm, parametrization": lambda: with_tail(new_spectral_norm()),
    "spectral norm, both": lambda: with_tail(new_spectral_norm(), old_spectral_norm()),
    "weight norm": lambda: with_tail(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))),
    "codebook read before its write": lambda: with_tail(Codebook(read_first=True)),
    "codebook read after its write": lambda: with_tail(Codebook()),
    "codebook in a frozen parameter": lambda: with_tail(Codebook(frozen_parameter=True)),
    "rebound buffer": lambda: with_tail(Rebinding()),
    "buffer registered in forward": lambda: with_tail(Registering()),
    "buffer deleted in forward": lambda: with_tail(Deleting()),
    "buffer filled in forward": lambda: with_tail(Filling()),
    "buffer at a fixed point": lambda: with_tail(Fixed()),
    "counters and flags": lambda: with_tail(Nested()),
    "buffers that are views": lambda: with_tail(Views()),
    "tied codebooks": tied_codebooks,
    "three boundaries deep": three_deep,
    "inner buffer written by both": lambda: OuterWrites(inner_writes=True),
    "inner buffer written by outer": lambda: OuterWrites(inner_writes=False),
    "inner buffer rebound by outer": lambda: OuterWrites(inner_writes=False, rebinds=True),
    "inner buffer rebound by outer, written by inner": lambda: OuterWrites(True, rebinds=True),
    "rebound and written in turn": lambda: with_tail(Alternating()),
    "observer": lambda: with_tail(quantization.MinMaxObserver()),
    "moving average observer": lambda: with_tail(quantization.MovingAverageMinMaxObserver()),
    "per channel observer": lambda: with_tail(quantization.PerChannelMinMaxObserver(ch_axis=1)),
    "histogram observer": lambda: with_tail(quantization.HistogramObserver()),
    "fake quantisation": lambda: with_tail(quantization.FakeQuantize()),
    "fused fake quantisation": lambda: with_tail(quantization.FusedMovingAvgObsFakeQuantize()),
    "everything": lambda: with_tail(
        nn.BatchNorm1d(6), Codebook(), Rebinding(), nn.Dropout(0.2), OwnNorm(), old_spectral_norm()
    ),
}

SHARED: dict[str, Callable[[], nn.Module]] = {
    "norm": lambda: with_tail(nn.BatchNorm1d(6)),
    "own norm": lambda: with_tail(OwnNorm()),
    "codebook": lambda: with_tail(Codebook()),
    "rebound": lambda: with_tail(Rebinding()),
    "spectral norm": lambda: with_tail(new_spectral_norm()),
    "registered": lambda: with_tail(Registering()),
}


# Fused fake quantisation does not take bfloat16: the ordinary run raises.
CASES = [
    (name, style)
    for name in BODIES
    for style in STYLES
    if (name, style) != ("fused fake quantisation", "bf16_autocast")
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("name", "style"), CASES)
def test_nothing_declared_and_nothing_changes(name: str, style: str) -> None:
    torch.manual_seed(0)

    assert_checkpointing_changes_nothing(Block(BODIES[name]()), style, torch.randn(9, 6), steps=3)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_block_called_twice(name: str, style: str) -> None:
    torch.manual_seed(0)

    assert_checkpointing_changes_nothing(Twice(Block(SHARED[name]())), style, torch.randn(9, 6))


@pytest.mark.parametrize("style", ["backward", "retained", "autograd_grad", "double_backward"])
def test_a_buffer_that_carries_a_graph(style: str) -> None:
    """Over two steps the ordinary run would go through a freed graph."""
    torch.manual_seed(0)
    block = Block(nn.Sequential(Recurrent(), nn.Linear(6, 6)))

    assert_checkpointing_changes_nothing(block, style, torch.randn(9, 6), steps=1)


def test_a_buffer_that_carries_a_graph_from_one_joint_forward_to_the_next() -> None:
    torch.manual_seed(0)
    block = Block(nn.Sequential(Recurrent(), nn.Linear(6, 6)))

    assert_checkpointing_changes_nothing(block, "joint", torch.randn(9, 6), steps=1)


@pytest.mark.parametrize("name", ["codebook read after its write", "own norm class"])
@pytest.mark.parametrize("style", STYLES)
def test_two_boundaries_that_share_a_stateful_module(name: str, style: str) -> None:
    torch.manual_seed(0)
    shared = BODIES[name]()
    model = nn.Sequential(Block(shared), Block(nn.Sequential(nn.Linear(6, 6), shared)))

    assert_checkpointing_changes_nothing(model, style, torch.randn(9, 6))


@pytest.mark.parametrize("name", ["codebook read after its write", "rebound buffer"])
@pytest.mark.parametrize("style", STYLES)
def test_state_in_the_boundary_itself(name: str, style: str) -> None:
    class Own(Block):
        def __init__(self) -> None:
            super().__init__(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)))
            self.register_buffer("book", torch.ones(6))
            self.rebinds = name == "rebound buffer"

        def _forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.rebinds:
                self.book = self.book + 1
            else:
                self.book += x.detach().float().mean(0)
            out: torch.Tensor = super()._forward(x * self.book.clone())
            return out

    torch.manual_seed(0)

    assert_checkpointing_changes_nothing(Own(), style, torch.randn(9, 6))
