"""Blocks with Python attributes, caches, generators and buffers that others write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from matrix.blocks.base import Boundary
from matrix.extras import import_extra
from wcn_ckpt.nn.modules import GradientCheckpointingMixin


class _Layer(Boundary):
    """A boundary with one linear layer.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.linear = nn.Linear(channels, channels)


class CountedRows(_Layer):
    """Counts the rows it has seen in a Python attribute."""

    rows_seen = 0

    def _forward(self, x: Tensor) -> Tensor:
        self.rows_seen += len(x)
        y: Tensor = self.linear(x).tanh()
        return y


class AuxiliaryLoss(_Layer):
    """Appends the size of its gate to a list, as a router does with its balance loss."""

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(channels, use_checkpoint)
        self.losses: list[float] = []

    def _forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.linear(x).sigmoid()
        self.losses.append(gate.detach().square().mean().item())
        return x * gate


class HookedCounter(_Layer):
    """Counts the calls of its layer in a buffer, from a forward hook."""

    calls: Tensor

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(channels, use_checkpoint)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.linear.register_forward_hook(lambda *_: self.calls.add_(1) and None)

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x).tanh()
        return y


class GrowingCache(_Layer):
    """Attends to the rows of this forward and of the calls before it, kept in an attribute."""

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(channels, use_checkpoint)
        self.cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels); each forward starts with an empty cache."""
        self.cache = None
        return super().forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        rows = self.linear(x)
        self.cache = rows if self.cache is None else torch.cat([self.cache, rows])
        y: Tensor = torch.softmax(rows @ self.cache.T, -1) @ self.cache
        return y


class NumpyMask(_Layer):
    """Drops features by a mask that numpy draws."""

    def _forward(self, x: Tensor) -> Tensor:
        numpy = import_extra("numpy", "this block")
        mask = torch.from_numpy(numpy.random.random(tuple(x.shape)) < 0.7)
        y: Tensor = self.linear(x * mask.to(x.device)).tanh()
        return y


class GeneratorMask(_Layer):
    """Drops features by a mask from a generator of its own, which it passes to its boundary."""

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(channels, use_checkpoint)
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self._gradient_checkpointed_call(self._masked, x, self.generator)
        return y

    def _masked(self, x: Tensor, generator: torch.Generator) -> Tensor:
        mask = torch.rand(x.shape, generator=generator) < 0.7
        y: Tensor = self.linear(x * mask).tanh()
        return y


class OwnOrder(Boundary):
    """Three different layers in an order that it draws from a generator of its own.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.layers = nn.ModuleList(nn.Linear(channels, channels) for _ in range(3))
        self.generator = random.Random(3)

    def _forward(self, x: Tensor) -> Tensor:
        order = list(self.layers)
        self.generator.shuffle(order)
        for layer in order:
            x = layer(x).tanh()
        return x


class MovingCentre(GradientCheckpointingMixin, nn.Module):
    """Centres its input, and moves the centre once its boundary has returned.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    centre: Tensor

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        self.linear = nn.Linear(channels, channels)
        self.register_buffer("centre", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self._gradient_checkpointed_call(self._forward, x)
        with torch.no_grad():
            self.centre.lerp_(x.float().mean(0), 0.5)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear((x - self.centre).sin())
        return y


class SwitchedAdapter(GradientCheckpointingMixin, nn.Module):
    """Runs one boundary with one adapter and then with another, named by an attribute.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        self.adapters = nn.ModuleDict(
            {name: nn.Linear(channels, channels) for name in ("query", "answer")}
        )
        self.active = "query"

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        for name in self.adapters:
            self.active = name
            x = self._gradient_checkpointed_call(self._forward, x)
        return x

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.adapters[self.active](x).tanh()
        return y


_WIDE: ContextVar[bool] = ContextVar("wide", default=False)


@contextmanager
def _wide() -> Iterator[None]:
    token = _WIDE.set(True)
    try:
        yield
    finally:
        _WIDE.reset(token)


class AmbientSwitch(_Layer):
    """Runs a further layer where a context variable says so, which it does in forward only."""

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(channels, use_checkpoint)
        self.further = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        with _wide():
            return super().forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x).tanh()
        if _WIDE.get():
            y = y + self.further(x).tanh()
        return y
