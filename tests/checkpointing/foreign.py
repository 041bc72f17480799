"""Models that nobody prepared, as other libraries write them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.utils.checkpoint as cp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Ema(nn.Module):
    """State that a forward reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x - self.mean.clone()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return out


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.ema = Ema()
        self.dropout = nn.Dropout(0.3)
        self.calls: list[bool] = []

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        self.calls.append(self.training)
        out: Tensor = self.dropout(self.ema(self.norm(self.linear(x)))).tanh() * scale
        return x + out


class Model(nn.Module):
    """Two layers, which subclasses call in the style of a library."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        if self.grad_checkpointing:
            return self.checkpointed(x)
        for layer in self.layers:
            x = layer(x)
        return x

    def checkpointed(self, x: Tensor) -> Tensor:
        raise NotImplementedError


def checkpoint_seq(functions: Any, x: Tensor, every: int = 1) -> Tensor:
    """Checkpoint slices of a sequence of modules, as timm does."""

    def run_function(start: int, end: int, functions: Sequence[Any]) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            for index in range(start, end + 1):
                x = functions[index](x)
            return x

        return forward

    functions = tuple(chain(functions))
    for start in range(0, len(functions), every):
        end = min(start + every, len(functions)) - 1
        x = checkpoint(run_function(start, end, functions), x, use_reentrant=False)
    return x


class Timm(Model):
    def checkpointed(self, x: Tensor) -> Tensor:
        return checkpoint_seq(self.layers, x)


class TimmInOne(Model):
    def checkpointed(self, x: Tensor) -> Tensor:
        return checkpoint_seq(self.layers, x, every=2)


class Torchvision(Model):
    """A closure over `self`, and the function looked up in its module."""

    def checkpointed(self, x: Tensor) -> Tensor:
        def closure(*inputs: Tensor) -> Tensor:
            out = inputs[0]
            for layer in self.layers:
                out = layer(out)
            return out

        return cp.checkpoint(closure, x, use_reentrant=False)  # type: ignore[no-any-return]


class CustomForward(Model):
    """The factory of functions that older Transformers and diffusers use."""

    def checkpointed(self, x: Tensor) -> Tensor:
        def create_custom_forward(module: nn.Module) -> Callable[..., Any]:
            def custom_forward(*inputs: Any) -> Any:
                return module(*inputs)

            return custom_forward

        for layer in self.layers:
            x = cp.checkpoint(create_custom_forward(layer), x, 1.0, use_reentrant=False)
        return x


class BoundMethod(Model):
    def checkpointed(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer.__call__, x, scale=1.0, use_reentrant=False)
        return x


class StoredPartial(Model):
    """The checkpoint function kept on the model, keywords of the layer in a partial."""

    def __init__(self) -> None:
        super().__init__()
        self.function = functools.partial(checkpoint, use_reentrant=False)

    def checkpointed(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.function(functools.partial(layer.__call__, scale=1.0), x)
        return x


def _call(module: nn.Module, x: Tensor) -> Any:
    return module(x)


class ModuleArgument(Model):
    """The module as an argument, the checkpoint function as a default."""

    def checkpointed(self, x: Tensor, function: Callable[..., Any] = checkpoint) -> Tensor:
        for layer in self.layers:
            x = function(_call, layer, x, use_reentrant=False)
        return x


_registry: dict[str, Model] = {}


def _call_registered(x: Tensor) -> Tensor:
    for layer in _registry["model"].layers:
        x = layer(x)
    return x


class Unnamed(Model):
    """A function from which no module can be reached."""

    def checkpointed(self, x: Tensor) -> Tensor:
        _registry["model"] = self
        return checkpoint(_call_registered, x, use_reentrant=False)  # type: ignore[no-any-return]


class Sequential(Model):
    def checkpointed(self, x: Tensor) -> Tensor:
        return cp.checkpoint_sequential(  # type: ignore[no-any-return]
            nn.Sequential(*self.layers), 2, x, use_reentrant=False
        )


STYLES: list[type[Model]] = [
    Timm,
    TimmInOne,
    Torchvision,
    CustomForward,
    BoundMethod,
    StoredPartial,
    ModuleArgument,
    Unnamed,
    Sequential,
]


def train(model: nn.Module, steps: int = 3) -> dict[str, Tensor]:
    """Train from a fixed seed; return all that it left behind."""
    torch.manual_seed(7)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: dict[str, Tensor] = {}
    for step in range(steps):
        x = torch.randn(8, 4, requires_grad=True)
        optimizer.zero_grad()
        model(x).square().sum().backward()
        assert x.grad is not None
        seen[f"{step}.input"] = x.grad
        seen |= {f"{step}.{name}.grad": p.grad for name, p in model.named_parameters()}  # type: ignore[misc]
        seen |= {f"{step}.{name}": buffer.clone() for name, buffer in model.named_buffers()}
        optimizer.step()
    seen["rng"] = torch.get_rng_state()
    return seen
