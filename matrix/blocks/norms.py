"""Blocks whose norms keep running statistics in other ways than one BatchNorm call does."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from matrix.blocks.base import Boundary
from matrix.blocks.readme import MyBlock


class CalledTwice(nn.Module):
    """One boundary with one BatchNorm, called twice in each forward.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__()
        self.block = MyBlock(channels, use_checkpoint)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self.block(self.block(x))
        return y


class OwnNorm(nn.Module):
    """Normalizes over the batch, with running statistics that no torch class knows of.

    Args:
        channels: Number of channels.
    """

    average: Tensor
    spread: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(channels))
        self.register_buffer("spread", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        return functional.batch_norm(x, self.average, self.spread, training=self.training)


class OwnNormBlock(Boundary):
    """A linear layer and a norm class of the user's own.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.linear = nn.Linear(channels, channels)
        self.norm = OwnNorm(channels)

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.linear(x))
        return y.tanh()


class InstanceNormBlock(Boundary):
    """A pointwise convolution and InstanceNorm with running statistics, on (B, channels, L).

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.conv = nn.Conv1d(channels, channels, 1)
        self.norm = nn.InstanceNorm1d(channels, affine=True, track_running_stats=True)

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x))
        return y.tanh()
