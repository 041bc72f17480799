"""Blocks that ask for a gradient in their own forward, which a checkpoint replays within it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import harness

NARROW = ["steps=1", "accumulation=one", "backward=plain"]


class Force(nn.Module):
    """Adds the gradient of what it computes with respect to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x)).sin()
        (force,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + force


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.block = nn.Linear(4, 4), Force()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(self.before(x))
        return out


def inputs(seed: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))


def test_a_replay_within_a_forward_is_no_call_of_it() -> None:
    report = harness.verify(Model, inputs, boundaries=["block"], axes=NARROW)

    assert report.passed, report.text


class Naive(Model):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, self.before(x), use_reentrant=False)
        return out


def test_statistics_that_such_a_replay_updates_are_found() -> None:
    report = harness.verify(Naive, inputs, axes=NARROW)

    assert not report.passed
    assert any("'block.norm' was updated" in f.cause for f in report.findings), report.text
