"""Models that are odd in one way each; loaded by name and in process."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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
        from torch.utils.checkpoint import checkpoint

        if self.use_checkpoint and self.training:
            return checkpoint(self.block, x, use_reentrant=False)
        return self.block(x)


class DeadFlag(Plain):
    """Has a flag that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.gradient_checkpointing = False


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
