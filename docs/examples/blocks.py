"""The block that the examples train: BatchNorm and dropout, nothing prepared for checkpointing."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block on rows of features.

    Args:
        channels: features in and out.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, channels)
        self.norm = nn.BatchNorm1d(channels)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Map features of shape (N, C) to the same shape."""
        out: Tensor = x + self.dropout(self.norm(self.linear(x)).relu())
        return out


def build_model(channels: int = 16) -> nn.Sequential:
    """Return two blocks and a head for two classes."""
    return nn.Sequential(Block(channels), Block(channels), nn.Linear(channels, 2))


def make_rows(count: int = 64, channels: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of features of shape (C,) and a class."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, channels, generator=generator)
    return [(row, (row.sum() > 0).long()) for row in features]
