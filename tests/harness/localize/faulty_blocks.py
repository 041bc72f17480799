"""Blocks that nobody prepared, and arms that checkpoint them; loaded on ranks by file name.

Every arm puts torch's own checkpoint around the submodules called ``block``, so that the faults are
those of the blocks, or of the arm where its name says so.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

Switch = Callable[[bool], None]
HIDDEN: list[int] = []
"""State that no module holds."""
GENERATOR = torch.Generator()


class Model(nn.Module):
    """Runs a block between two layers.

    Args:
        channels: Width.
        block: Name of its class in this file.
    """

    def __init__(self, channels: int, block: str) -> None:
        super().__init__()
        HIDDEN.clear()
        GENERATOR.manual_seed(0)
        self.before = nn.Linear(channels, channels)
        self.block = globals()[block](channels)
        self.after = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.block(self.before(x)))


class WithMask(Model):
    """Gives the block a keyword tensor, and writes it afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full(x.shape, 0.5)
        y = self.block(self.before(x), mask=mask)
        mask.zero_()
        return self.after(y)


class WithGenerator(Model):
    """Gives the block a generator as an argument."""

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return self.after(self.block(self.before(x), generator))


class Chain(Model):
    """Runs its block twice."""

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.block(self.block(self.before(x))))


class Scaling(Model):
    """Surrounds its block with something, for the forward alone."""

    def forward(self, x: Tensor) -> Tensor:
        with self.block[1].surrounded():
            y = self.block(self.before(x))
        return self.after(y)


class Layers(nn.Sequential):
    """Two layers with something between them."""

    def __init__(self, channels: int, between: nn.Module) -> None:
        super().__init__(nn.Linear(channels, channels), between, nn.Linear(channels, channels))


class WithNorm(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, nn.BatchNorm1d(channels))


class WithDropout(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, nn.Dropout(0.5))


class EndsInDropout(nn.Sequential):
    def __init__(self, channels: int) -> None:
        super().__init__(nn.Linear(channels, channels), nn.Tanh(), nn.Dropout(0.5))


class Noise(nn.Module):
    """Scales by a random number: from ``random``, from NumPy, or from a generator of its own."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.generators = [torch.Generator().manual_seed(1)]

    def forward(self, x: Tensor) -> Tensor:
        if self.source == "python":
            return x * random.random()
        if self.source == "numpy":
            return x * float(numpy.random.rand())
        return x * torch.rand(1, generator=self.generators[0])


class WithPython(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, Noise("python"))


class WithNumpy(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, Noise("numpy"))


class WithOwnGenerator(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, Noise("own"))


class TakesGenerator(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, nn.Tanh())

    def forward(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self[2](self[1](self[0](x)) * torch.rand(1, generator=generator))


class Counter(nn.Module):
    """Scales by how often it has run, which it keeps as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x / self.runs


class WithCounter(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, Counter())


class SilentCounter(Counter):
    """Counts, and does not read it."""

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x


class WithSilentCounter(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, SilentCounter())


class Average(nn.Module):
    """Subtracts a running mean, which it moves first."""

    mean: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.5)
        return (x - self.mean.clone()).tanh()


class WithAverage(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, Average(channels))


class Masked(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, nn.Tanh())

    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        return self[2](self[1](self[0](x) + mask))


class Turns(Layers):
    """Runs its layers in another order every second time, by state that no module holds."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        HIDDEN.append(1)
        order = (0, 1, 2) if len(HIDDEN) % 2 else (2, 1, 0)
        for index in order:
            x = self[index](x)
        return x


FLAGS = {"scaled": False}
LOCAL = threading.local()
SCALE = contextvars.ContextVar("scale", default=1.0)


class Settings:
    scale = 1.0


class Surrounded(nn.Module):
    """Computes with something that is set while the forward lasts."""

    @contextlib.contextmanager
    def surrounded(self) -> Iterator[None]:
        self.set(5.0)
        yield
        self.set(1.0)

    def set(self, scale: float) -> None:
        raise NotImplementedError

    def scale(self) -> float:
        return 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale()).sin()


class GlobalFlag(Surrounded):
    def set(self, scale: float) -> None:
        FLAGS["scaled"] = scale > 1

    def scale(self) -> float:
        return 5.0 if FLAGS["scaled"] else 1.0


def flagged_scale() -> float:
    return 5.0 if FLAGS["scaled"] else 1.0


class GlobalFlagInHelper(GlobalFlag):
    def scale(self) -> float:
        return flagged_scale()


class ClassAttribute(Surrounded):
    def set(self, scale: float) -> None:
        Settings.scale = scale

    def scale(self) -> float:
        return Settings.scale


class ThreadLocal(Surrounded):
    def set(self, scale: float) -> None:
        LOCAL.scale = scale

    def scale(self) -> float:
        return getattr(LOCAL, "scale", 1.0)


class ContextVariable(Surrounded):
    @contextlib.contextmanager
    def surrounded(self) -> Iterator[None]:
        token = SCALE.set(5.0)
        yield
        SCALE.reset(token)

    def scale(self) -> float:
        return SCALE.get()


class Threefold(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.sin:
            args = (args[0] * 3,)
        return func(*args, **(kwargs or {}))


class FunctionMode(Surrounded):
    @contextlib.contextmanager
    def surrounded(self) -> Iterator[None]:
        with Threefold():
            yield

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


def fivefold(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 5


class PassingHook(Surrounded):
    @contextlib.contextmanager
    def surrounded(self) -> Iterator[None]:
        handle = self.register_forward_hook(fivefold)
        yield
        handle.remove()


def closing() -> tuple[Callable[[], float], Callable[[float], None]]:
    factors = [1.0]

    def scaled() -> float:
        return factors[0]

    def change(factor: float) -> None:
        factors[0] = factor

    return scaled, change


class Closure(Surrounded):
    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.change = closing()

    def set(self, scale: float) -> None:
        self.change(scale)

    def scale(self) -> float:
        return self.scaled()


class SaturatedLater(Surrounded):
    """Saturates with the factor that the replay finds."""

    factor = 1.0

    def set(self, scale: float) -> None:
        self.factor = 1.0 if scale > 1 else 1e9

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.factor).tanh()


class GlobalNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(x.shape, generator=GENERATOR)


def _layers(between: type[nn.Module]) -> Callable[[int], Layers]:
    return lambda channels: Layers(channels, between())


ReadsGlobal = _layers(GlobalFlag)
ReadsGlobalInHelper = _layers(GlobalFlagInHelper)
ReadsClassAttribute = _layers(ClassAttribute)
ReadsThreadLocal = _layers(ThreadLocal)
ReadsContextVariable = _layers(ContextVariable)
UnderFunctionMode = _layers(FunctionMode)
WithPassingHook = _layers(PassingHook)
ReadsClosure = _layers(Closure)
Saturating = _layers(SaturatedLater)
DrawsFromGlobal = _layers(GlobalNoise)


class Cache(nn.Module):
    """Attends to all rows that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(x.detach())
        rows = torch.cat(self.rows)
        return (x @ rows.T).softmax(1) @ rows


class WithCache(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, Cache())


class Jitter(nn.Module):
    """Adds the noise of a kernel that is not deterministic."""

    def forward(self, x: Tensor) -> Tensor:
        bits = torch.frombuffer(bytearray(os.urandom(x.numel())), dtype=torch.uint8)
        return x * (1 + 1e-3 * bits.reshape(x.shape).float() / 255)


class WithJitter(Layers):
    def __init__(self, channels: int) -> None:
        super().__init__(channels, Jitter())


class Plain(Layers):
    scale: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels, nn.Tanh())
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self[2](self[1](self[0](x)) * self.scale.clone())


class Outer(nn.Module):
    """Holds a block of its own around one with dropout; both are checkpointed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, channels)
        self.block = WithAverage(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.first(x).tanh()).tanh()


Contexts = Callable[[nn.Module], Callable[[], tuple[Any, Any]]]


def _checkpoint(
    module: nn.Module,
    contexts: Contexts | None = None,
    on: Callable[[], bool] | None = None,
    **how: Any,
) -> Switch:
    for path, block in module.named_modules():
        if path.rpartition(".")[2] == "block":
            _wrap(block, contexts, on, how)
    return lambda on: None


def _wrap(block: nn.Module, contexts: Contexts | None, on: Any, how: dict[str, Any]) -> None:
    forward = block.forward

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        options = {"use_reentrant": False, **how}
        if contexts is not None:
            options["context_fn"] = contexts(block)
        if on is not None and on():
            options["preserve_rng_state"] = False
        return checkpoint(forward, *args, **options, **kwargs)

    block.forward = checkpointed  # type: ignore[method-assign]


def bare(module: nn.Module) -> Switch:
    return _checkpoint(module)


def rng_not_preserved(module: nn.Module) -> Switch:
    return _checkpoint(module, preserve_rng_state=False)


def rng_not_preserved_on_rank_1(module: nn.Module) -> Switch:
    return _checkpoint(module, on=lambda: os.environ["RANK"] == "1")


def no_early_stop(module: nn.Module) -> Switch:
    return _checkpoint(module, preserve_rng_state=False, early_stop=False)


def without_gradients(module: nn.Module) -> Switch:
    return _checkpoint(module, lambda block: lambda: (contextlib.nullcontext(), torch.no_grad()))


def reentrant(module: nn.Module) -> Switch:
    return _checkpoint(module, use_reentrant=True)


def autocast_lost(module: nn.Module) -> Switch:
    return _checkpoint(module, lambda block: lambda: (contextlib.nullcontext(), _no_autocast()))


def autocast_lost_unchecked(module: nn.Module) -> Switch:
    return _checkpoint(
        module,
        lambda block: lambda: (contextlib.nullcontext(), _no_autocast()),
        determinism_check="none",
    )


def _no_autocast() -> Any:
    return torch.autocast("cpu", enabled=False)


def second_replay_moves_scale(module: nn.Module) -> Switch:
    replays = []

    @contextlib.contextmanager
    def replay(block: nn.Module) -> Iterator[None]:
        replays.append(block)
        with torch.no_grad():
            block.scale.add_(float(len(replays) == 2))
        try:
            yield
        finally:
            with torch.no_grad():
                block.scale.sub_(float(len(replays) == 2))

    class Again(contextlib.AbstractContextManager[None]):
        def __init__(self, block: nn.Module) -> None:
            self.block = block

        def __enter__(self) -> None:
            self.inner = replay(self.block)
            self.inner.__enter__()

        def __exit__(self, *exception: Any) -> None:
            # Torch's early stop passes through; the generator would raise it again.
            self.inner.__exit__(None, None, None)

    return _checkpoint(module, lambda block: lambda: (contextlib.nullcontext(), Again(block)))


def own_function(module: nn.Module) -> Switch:
    """Checkpoint with an autograd function that is neither torch's nor keeps the RNG state."""
    block = module.block
    forward = block.forward
    parameters = tuple(block.parameters())

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            with torch.no_grad():
                return forward(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = forward(x)
            return torch.autograd.grad(y, (x, *parameters), gradient)

    block.forward = lambda x: Recomputed.apply(x, *parameters)
    return lambda on: None
