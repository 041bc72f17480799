"""Blocks that overwrite what autograd has saved of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.checkpointing.steps import STYLES, Block, assert_checkpointing_changes_nothing
from wcn_ckpt import ReplayGuardError


class Codebook(nn.Module):
    """Looks up the nearest code and moves it; the distances, saved for backward, are never used."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("codes", torch.randn(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        nearest = torch.cdist(h, self.codes).argmin(1)
        code = self.codes[nearest]
        with torch.no_grad():
            self.codes.mul_(0.9).add_(F.one_hot(nearest, 5).float().t() @ h, alpha=0.1)
        return h + (code - h).detach() + (h - code).square()


class Overwriting(nn.Module):
    """Overwrites the value of exp, which its gradient needs."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.exp()
        z = y.sin()
        with torch.no_grad():
            y.mul_(2)
        return z.exp()


@pytest.mark.parametrize("style", STYLES)
def test_what_no_gradient_needs_may_be_overwritten(style: str) -> None:
    assert_checkpointing_changes_nothing(Block(Codebook()), style, torch.randn(8, 6), steps=5)


def test_what_a_gradient_needs_is_refused_in_each_backward() -> None:
    block, x = Block(Overwriting()), torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        block(x).sum().backward()

    block.gradient_checkpointing = True
    loss = block(x).sum()
    for _ in range(3):
        with pytest.raises(ReplayGuardError, match=r"overwrites a tensor of shape \(3,\)"):
            loss.backward(retain_graph=True)


def test_inside_another_boundary_it_is_refused_too() -> None:
    inner = Block(Overwriting())
    outer = Block(nn.Sequential(nn.Linear(3, 3), inner))
    inner.gradient_checkpointing = outer.gradient_checkpointing = True

    with pytest.raises(ReplayGuardError, match="Overwriting|Block"):
        outer(torch.randn(3)).sum().backward()
