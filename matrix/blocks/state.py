"""Blocks that read what they write, or draw random numbers: state that a replay must see again."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from matrix.blocks.base import Boundary


class SpectralNormBlock(Boundary):
    """A linear layer whose weight is divided by an estimate that each forward improves.

    One power iteration a forward from a random start: the estimate is far from its limit, so a
    replay that starts from another one computes another weight.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.linear = spectral_norm(nn.Linear(channels, channels))

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.tanh()


class CodebookBlock(Boundary):
    """Replaces each row by its nearest code, and moves the codes towards the rows they stand for.

    The straight-through estimator and the exponential moving average of van den Oord et al.,
    "Neural Discrete Representation Learning", NeurIPS 2017, with one fixed rate.

    Args:
        channels: Width of input and output.
        codes: Number of codes.
        use_checkpoint: Whether the boundary starts enabled.
    """

    codebook: Tensor

    def __init__(self, channels: int, codes: int = 8, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.before = nn.Linear(channels, channels)
        self.after = nn.Linear(channels, channels)
        self.register_buffer("codebook", torch.randn(codes, channels))

    def _forward(self, x: Tensor) -> Tensor:
        rows = self.before(x)
        with torch.no_grad():
            values = rows.float()
            nearest = torch.cdist(values, self.codebook).argmin(1)
            quantized = self.codebook[nearest]
            counts = torch.zeros(len(self.codebook), 1, device=x.device)
            counts.index_add_(0, nearest, torch.ones(len(values), 1, device=x.device))
            sums = torch.zeros_like(self.codebook).index_add_(0, nearest, values)
            means = torch.where(counts > 0, sums / counts.clamp(min=1), self.codebook)
            self.codebook.lerp_(means, 0.3)
        y: Tensor = self.after(rows + (quantized - rows).detach())
        return y


class ReboundBlock(Boundary):
    """A scale that follows how often the block has run, in a buffer bound anew each time.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    runs: Tensor

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.linear = nn.Linear(channels, channels)
        self.register_buffer("runs", torch.zeros(()))

    def _forward(self, x: Tensor) -> Tensor:
        self.runs = self.runs + 1
        y: Tensor = self.linear(x) / self.runs
        return y.tanh()


class DropoutBlock(Boundary):
    """Dropout between two linear layers.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.layers = nn.Sequential(
            nn.Linear(channels, channels), nn.Dropout(0.3), nn.Linear(channels, channels)
        )

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


class RandomOrderBlock(Boundary):
    """Four layers in an order that each forward draws from Python's ``random``.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.layers = nn.ModuleList(nn.Linear(channels, channels) for _ in range(4))

    def _forward(self, x: Tensor) -> Tensor:
        order = list(self.layers)
        random.shuffle(order)
        for layer in order:
            x = layer(x).tanh()
        return x
