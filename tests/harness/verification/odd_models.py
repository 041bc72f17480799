"""Models that are odd in one way each; loaded by name and in process."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from matrix.batches import terrain_batch
from wcn_ckpt.nn.modules import BasicBlock


def rows(seed: int) -> Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))


def rows_with_grad(seed: int) -> Tensor:
    return rows(seed).requires_grad_()


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).gelu() if False else torch.tanh(self.first(x)))


class NoParameters(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x).exp().sin()


class OutputsNested(Plain):
    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return {"none": None, "pair": (y, [y.sin(), {"deep": y.cos()}]), "count": 3}


class OutputsNone(Plain):
    def forward(self, x: Tensor) -> Any:
        super().forward(x)


class InPlace(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clone().mul_(2)).relu_()


class ChangesItsInput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x.tanh())
        with torch.no_grad():
            x.add_(1)
        return y


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.Tanh())

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Any:
        return self.second(torch.tanh(self.first(x)))


class Hooked(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.first.register_forward_hook(lambda module, args, output: output * 2)
        self.second.register_full_backward_hook(lambda module, inner, outer: None)


class NormOfGradients(Plain):
    """Follows the statistics of its gradients in a norm that no forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = nn.BatchNorm1d(8)
        self.second.register_full_backward_hook(self._follow)

    def _follow(self, module: nn.Module, inner: Any, outer: tuple[Tensor]) -> None:
        self.statistics(outer[0])


class CountingHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.first.register_forward_hook(self.count)

    def count(self, *_: Any) -> None:
        self.calls += 1


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class CustomFunction(Plain):
    def forward(self, x: Tensor) -> Any:
        return _Square.apply(super().forward(x))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x.to(torch.complex64) @ self.weight)


class Integers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, 16), nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Any:
        logits = self.head(torch.tanh(self.table(ids)))
        return logits, logits.argmax(-1)


def ids(seed: int) -> Tensor:
    return torch.randint(0, 32, (4, 8), generator=torch.Generator().manual_seed(seed))


class OnlyIntegersOut(Integers):
    def forward(self, ids: Tensor) -> Any:
        return super().forward(ids)[1]


class OnlyAList(nn.ModuleList):
    """A list of modules and no forward."""


def only_a_list() -> nn.Module:
    return nn.ModuleList([Plain(), Plain()])


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Plain() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class DependsOnData(Plain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.sin() if bool(y.sum() > 0) else y.cos().exp()


class DependsOnChance(Plain):
    def forward(self, x: Tensor) -> Tensor:
        order = list(range(8))
        random.shuffle(order)
        return super().forward(x[:, order])


class HugeBuffer(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(2_000_000))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.get_buffer("table")[0]


class Slotted:
    __slots__ = ("rows", "scale")

    def __init__(self, rows: Tensor, scale: float) -> None:
        self.rows, self.scale = rows, scale


class TakesSlots(Plain):
    def forward(self, batch: Slotted) -> Any:
        return Slotted(super().forward(batch.rows) * batch.scale, batch.scale)


def slotted(seed: int) -> Slotted:
    return Slotted(rows_with_grad(seed), 0.5)


@dataclass
class Batch:
    rows: Tensor
    mask: Tensor | None = None


class TakesDataclass(Plain):
    def forward(self, batch: Batch, *, power: int) -> Any:
        return Batch(super().forward(batch.rows) ** power)


def dataclass_keywords(seed: int) -> dict[str, Any]:
    return {"batch": Batch(rows_with_grad(seed)), "power": 2}


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class TakesTwo(Plain):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return Pair(super().forward(x + y), y)


def two(seed: int) -> tuple[Tensor, Tensor]:
    return rows(seed), rows(seed + 1)


class Raises(Plain):
    def forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError("the third matrix is singular")


class RaisesWhenReplayed(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def forward(self, x: Tensor) -> Tensor:
        if self.used:
            raise RuntimeError("this block can be used once")
        self.used = True
        return super().forward(x)


class Generates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Plain() for _ in range(2))

    def forward(self, x: Tensor) -> Iterator[Tensor]:
        for layer in self.layers:
            x = layer(x)
            yield x


class Frozen(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class UnderNoGrad(Plain):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Counter(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.history: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.history.append(len(x))
        return super().forward(x)


class UnusedParameter(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(8, 8)


class Double(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.cell(x[None])


class ReturnsDistribution(Plain):
    def forward(self, x: Tensor) -> Any:
        return torch.distributions.Normal(super().forward(x), 1.0)


class OwnFlag(nn.Module):
    """Checkpoints a BatchNorm by itself, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.use_checkpoint = False
        self.block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh())

    def forward(self, x: Tensor) -> Any:
        if self.use_checkpoint and self.training:
            return checkpoint(self.block, x, use_reentrant=False)
        return self.block(x)


class DeadFlag(Plain):
    """Has a flag that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False


class Writes(Plain):
    """Has an effect at the start of its forward, where no early end of a replay spares it."""

    def forward(self, x: Tensor) -> Tensor:
        self.write(x)
        return super().forward(x)

    def write(self, x: Tensor) -> None:
        raise NotImplementedError


class WritesInDict(Writes):
    def __init__(self) -> None:
        super().__init__()
        self.stats = {"deep": {"mean": torch.zeros(8)}}

    def write(self, x: Tensor) -> None:
        self.stats["deep"]["mean"] = 0.9 * self.stats["deep"]["mean"] + x.detach().mean(0)


class WritesInObject(Writes):
    def __init__(self) -> None:
        super().__init__()
        self.state = SimpleNamespace(seen=0)

    def write(self, x: Tensor) -> None:
        self.state.seen += 1


class WritesASlot(Writes):
    __slots__ = ("seen",)

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def write(self, x: Tensor) -> None:
        self.seen += 1


class WritesAPrivateSlot(Writes):
    __slots__ = ("__seen",)

    def __init__(self) -> None:
        super().__init__()
        self.__seen = 0

    def write(self, x: Tensor) -> None:
        self.__seen += 1


class WritesAnIterator(Writes):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def write(self, x: Tensor) -> None:
        next(self.numbers)


class WritesAClosure(Writes):
    def __init__(self) -> None:
        super().__init__()
        self.bump = _counter()

    def write(self, x: Tensor) -> None:
        self.bump()


def _counter() -> Callable[[], None]:
    seen = 0

    def bump() -> None:
        nonlocal seen
        seen += 1

    return bump


class WritesItsClass(Writes):
    total: ClassVar[list[int]] = []

    def write(self, x: Tensor) -> None:
        self.total.append(len(x))


SEEN = 0
TABLES: dict[Any, Tensor] = {}


class WritesAGlobal(Writes):
    def write(self, x: Tensor) -> None:
        _count_globally()


def _count_globally() -> None:
    global SEEN
    SEEN += 1


class FillsACache(Writes):
    """Writes a global once for each shape, which no replay repeats."""

    def write(self, x: Tensor) -> None:
        if x.shape not in TABLES:
            TABLES[x.shape] = torch.ones(x.shape)


class CountsOutside(Layers):
    """Counts in the part that no boundary computes again."""

    def forward(self, x: Tensor) -> Tensor:
        _count_globally()
        return super().forward(x)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Any:
        return x + self.norm(self.linear(x)).relu()


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Norm() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class FrozenTrunk(Norms):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].requires_grad_(False)


class DetachedBranch(Norms):
    def forward(self, x: Tensor) -> Any:
        x = x + self.blocks[0](x).detach()
        return self.blocks[2](self.blocks[1](x))


class CheckpointsItself(Norms):
    def forward(self, x: Tensor) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)  # type: ignore[assignment]
        return x


class CheckpointsItselfReentrantly(Norms):
    def forward(self, x: Tensor) -> Any:
        first = self.blocks[0](x)
        return checkpoint(self.blocks[1], first, use_reentrant=True)


class TwoKinds(nn.Module):
    """The blocks of the first list are safe, those of the second are not."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Plain() for _ in range(2))
        self.decoder = nn.ModuleList(Counter() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in (*self.encoder, *self.decoder):
            x = block(x)
        return x


def weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh())


class SparseGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 8, sparse=True)

    def forward(self, ids: Tensor) -> Any:
        return torch.tanh(self.table(ids))


class SparseOutput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to_sparse()


def synchronized_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.SyncBatchNorm(8))


class ParameterInForward(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(8))
        return super().forward(x) * self.scale


class RandomReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), nn.RReLU()

    def forward(self, x: Tensor) -> Any:
        return self.act(self.linear(x))


class NotANumber(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float("nan")


def wrapped() -> nn.Module:
    return nn.DataParallel(Plain())


def traced() -> nn.Module:
    return torch.fx.symbolic_trace(Plain())


def needs_channels(channels: int) -> nn.Module:
    return nn.Linear(channels, channels)


def two_lines() -> nn.Module:
    raise RuntimeError("no weights\nhere")


ONE_FOR_ALL = Plain()


def sparse_block() -> nn.Module:
    return BasicBlock(4, 4)


def voxels(seed: int) -> Any:
    return terrain_batch(seed=seed, rank=0, microbatch=0, channels=4)


def not_a_model() -> int:
    return 3


def square_loss(output: Any) -> Tensor:
    return output.square().mean()  # type: ignore[no-any-return]


def wrong_loss(output: Any) -> Any:
    return "high"
