"""Modules with every kind of state that a training forward can write."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.checkpointing.steps import Block


class OwnNorm(nn.Module):
    """A norm class of a user's own: `F.batch_norm` moves no version of its statistics."""

    def __init__(self, channels: int = 6, momentum: float = 0.3) -> None:
        super().__init__()
        self.momentum = momentum
        self.active = True
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if not self.active:
            return x.tanh()
        return F.batch_norm(x, self.mean, self.var, training=True, momentum=self.momentum)


class Codebook(nn.Module):
    """A moving average that the output depends on, read before or after its write."""

    book: Tensor

    def __init__(self, read_first: bool = False, frozen_parameter: bool = False) -> None:
        super().__init__()
        self.read_first = read_first
        self.active = True
        book = torch.linspace(-1.0, 1.0, 6)
        if frozen_parameter:
            self.book = nn.Parameter(book, requires_grad=False)
        else:
            self.register_buffer("book", book)

    def forward(self, x: Tensor) -> Tensor:
        before = self.book.clone()
        if self.active:
            with torch.no_grad():
                self.book.mul_(0.7).add_(x.float().mean(0), alpha=0.3)
        return (x * (before if self.read_first else self.book.clone())).sin()


class Rebinding(nn.Module):
    """Replaces its buffer by a new tensor in each forward."""

    n: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.active = True
        self.register_buffer("n", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.active:
            self.n = self.n + 1
        return (x * self.n).cos()


class Registering(nn.Module):
    """Registers its buffer in the first forward, between others, and reads it in later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if "seen" not in self._buffers:
            self.register_buffer("seen", x.detach().float().mean(0))
            return x.sin()
        self.seen += 1
        return (x * self.seen.clone()).sin()


class Deleting(nn.Module):
    """Uses a buffer once, then deletes it."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("a", "once", "z"):
            self.register_buffer(name, torch.full((6,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        if "once" in self._buffers:
            out = (x * self.once).sin()
            del self.once
            return out
        return (x * self.a).cos()


class Filling(nn.Module):
    """Holds None until the first forward fills it."""

    memory: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.memory is None:
            self.memory = x.detach().float().mean(0)
            return x.tanh()
        self.memory += 0.5
        return (x * self.memory.clone()).tanh()


class Recurrent(nn.Module):
    """Its buffer carries the graph of the forward that made it."""

    h: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("h", torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Tensor) -> Tensor:
        self.h = (self.linear(x) * self.h).tanh()
        return self.h.sin()


class Views(nn.Module):
    """Two buffers that are views of one storage: writing one changes the other."""

    def __init__(self) -> None:
        super().__init__()
        storage = torch.linspace(0.0, 1.0, 12)
        self.register_buffer("whole", storage)
        self.register_buffer("part", storage[3:9])

    def forward(self, x: Tensor) -> Tensor:
        self.whole += 0.25
        return (x * self.part.clone()).sin()


class Fixed(nn.Module):
    """A moving average at its fixed point: written each time, and never another value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(0.5).add_(0.5)
        return (x * self.scale.clone()).sin()


class Nested(nn.Module):
    """Buffers of several dtypes, one written only every second forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0))
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("sometimes", torch.zeros(6, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        self.flag.logical_not_()
        if self.step % 2:
            self.sometimes += x.detach().double().mean(0)
        return x.sin() * int(self.step) * (2.0 if self.flag else 1.0)


class Drawing(nn.Module):
    """Scales its input by a number that `draw` gives."""

    def __init__(self, draw: Any, **generators: Any) -> None:
        super().__init__()
        self.draw = draw
        for name, generator in generators.items():
            setattr(self, name, generator)

    def forward(self, x: Tensor) -> Tensor:
        return (x * float(self.draw(self))).sin()


def with_tail(*layers: nn.Module) -> nn.Sequential:
    """Layers between linear ones, so that early stop comes after them."""
    return nn.Sequential(nn.Linear(6, 6), *layers, nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))


def far_from_convergence(layer: nn.Module, weight: Tensor) -> nn.Module:
    """Move a weight as an optimizer step would, so that power iteration is under way."""
    with torch.no_grad():
        weight.copy_(torch.randn(6, 6) * 3)
    return layer


def old_spectral_norm() -> nn.Module:
    layer = nn.utils.spectral_norm(nn.Linear(6, 6))
    return far_from_convergence(layer, layer.weight_orig)


def new_spectral_norm() -> nn.Module:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
    return far_from_convergence(layer, layer.parametrizations.weight.original)


def tied_codebooks() -> nn.Module:
    first, second = Codebook(), Codebook(read_first=True)
    second._buffers["book"] = first.book
    return with_tail(first, nn.Linear(6, 6), second)


def three_deep() -> nn.Module:
    inner = Block(with_tail(Codebook(), nn.Dropout(0.2), OwnNorm()))
    middle = Block(nn.Sequential(nn.Linear(6, 6), inner, Rebinding(), new_spectral_norm()))
    return nn.Sequential(nn.BatchNorm1d(6), middle, Codebook(read_first=True), nn.Linear(6, 6))


def codebook(writes: bool) -> Codebook:
    book = Codebook()
    book.active = writes
    return book


class OuterWrites(nn.Module):
    """Writes a buffer of a boundary below it, between two calls of that boundary."""

    def __init__(self, inner_writes: bool, rebinds: bool = False) -> None:
        super().__init__()
        self.inner = Block(with_tail(Fixed(), codebook(inner_writes)))
        self.rebinds = rebinds

    def forward(self, x: Tensor) -> Tensor:
        first = self.inner(x)
        holder = self.inner.body.get_submodule("2")
        if self.rebinds:
            holder.book = holder.book + 0.5
        else:
            holder.book.add_(0.5)
        out: Tensor = self.inner(first) + x.sin()
        return out


class Alternating(nn.Module):
    """Replaces its buffer in one forward, and writes it in place in the next."""

    b: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(6))
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        if self.step % 2:
            self.b = self.b * 0.5
        else:
            self.b += 0.75
        return (x * self.b.clone()).sin()


class Twice(nn.Module):
    """Calls one block two times."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(self.block(x).tanh())
        return out


class RandomLayers(nn.Module):
    """Chooses an order and scales from every global generator."""

    def forward(self, x: Tensor) -> Tensor:
        scales = [random.random(), float(np.random.rand()), 1 + random.gauss(0, 0.1)]
        random.shuffle(scales)
        for scale in scales:
            x = (x * scale + 0.1 * float(np.random.normal())).sin()
        return F.dropout(x, 0.3)
