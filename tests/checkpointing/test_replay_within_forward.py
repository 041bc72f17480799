"""Blocks that take a gradient inside their own forward: a replay runs before it has ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.public import both
from wcn_ckpt import make_checkpointable


class Force(nn.Module):
    """Adds the gradient of what it computes with respect to its input."""

    def __init__(self, factor: Callable[[Any], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("k", torch.ones(()))
        self.factor = factor
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        y = (self.w * self.norm(x) * self.factor(self)).sin()
        (force,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + force


def counted(block: Any) -> Any:
    block.k.add_(1)
    return block.k.clone()


FACTORS: dict[str, Callable[[Any], Any]] = {
    "random": lambda block: random.random(),
    "numpy": lambda block: np.random.rand(),
    "generator": lambda block: torch.rand((), generator=block.generator),
    "torch": lambda block: torch.rand(()),
    "written buffer": counted,
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_gradient_inside_the_block(name: str) -> None:
    def run(enable: bool) -> list[Any]:
        random.seed(0)
        np.random.seed(0)
        block, seen = Force(FACTORS[name]), []
        if enable:
            make_checkpointable(block, lambda module: module is block, use_checkpoint=True)
        for _ in range(3):
            block.zero_grad()
            x = torch.randn(4, 3, requires_grad=True)
            out = block(x)
            out.square().sum().backward()
            seen += [out.detach(), x.grad, block.w.grad, *map(torch.clone, block.buffers())]
        seen.append(torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))]))
        return seen

    plain, checkpointed = both(run)

    assert all(map(torch.equal, plain, checkpointed))
