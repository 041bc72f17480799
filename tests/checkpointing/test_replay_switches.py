"""What a block or its caller switches: a replay ends before the block does, and comes later."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.checkpointing.public import both
from wcn_ckpt import make_checkpointable


def boundary(module: Any, enable: bool) -> Any:
    if enable:
        make_checkpointable(module, lambda child: child is module, use_checkpoint=True)
    return module


class Freezing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).tanh()
        self.linear.requires_grad_(False)
        z: Tensor = self.linear(y).sin()
        self.linear.requires_grad_(True)
        return z


def test_a_layer_that_is_frozen_for_one_of_its_calls() -> None:
    def run(enable: bool) -> Any:
        block = boundary(Freezing(), enable)
        block(torch.ones(1, 2)).sum().backward()
        return block.linear.weight.grad.tolist(), block.linear.weight.requires_grad

    plain, checkpointed = both(run)

    assert checkpointed == plain and plain[1]


class Evaluating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(2, 2), nn.Dropout(0.5)
        self.evaluates = False

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(self.linear(x))
        if self.evaluates:
            self.dropout.eval()
            y = (y + self.dropout(self.linear(x))).sin()
            self.dropout.train()
        return y


def test_a_mode_that_is_switched_from_the_third_forward_on() -> None:
    def run(enable: bool) -> Any:
        block, modes = boundary(Evaluating(), enable), []
        for step in range(5):
            block.evaluates = step >= 2
            block(torch.ones(1, 2)).sum().backward()
            modes.append(block.dropout.training)
        return modes, block.linear.weight.grad.tolist()

    plain, checkpointed = both(run)

    assert checkpointed == plain and plain[0] == [True] * 5


def test_statistics_that_are_not_tracked_in_one_of_two_forwards() -> None:
    """As in virtual adversarial training, Miyato et al., 2018 (arXiv:1704.03976)."""

    def run(enable: bool) -> Any:
        block = boundary(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), enable)
        norm, x = block[1], torch.arange(6.0).view(3, 2)
        loss = block(x).sin().sum()
        norm.track_running_stats = False
        loss = loss + block(x * 2).sin().sum()
        norm.track_running_stats = True
        loss.backward()
        return (
            norm.num_batches_tracked.item(),
            norm.running_mean.tolist(),
            block[0].bias.grad.tolist(),
            norm.track_running_stats,
        )

    plain, checkpointed = both(run)

    assert checkpointed == plain and plain[0] == 1
