"""What two ranks run for the tests of SyncBatchNorm; loaded by file name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from harness.ranks.context import RankContext
from tests.checkpointing.steps import Block
from wcn_ckpt import configure_gradient_checkpointing
from wcn_ckpt.nn.modules import SyncBatchNorm

Step = Callable[[nn.Module, list[Tensor]], None]


@contextmanager
def counted_collectives() -> Iterator[list[torch.Size]]:
    """Note the shape of everything that is all-reduced."""
    shapes: list[torch.Size] = []

    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        shapes.append(tensor.shape)
        return original(tensor, *args, **kwargs)

    original = dist.all_reduce
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", counted)
        yield shapes


def batches(rows: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """One batch for each rank, the same on every rank."""
    generator = torch.Generator().manual_seed(4)
    return [
        (torch.randn(count, 3, *shape, generator=generator, dtype=torch.float64) * 2 + 5).to(dtype)
        for count in rows
    ]


def against_one_process(payload: dict[str, Any], context: RankContext) -> dict[str, float]:
    """Largest differences from BatchNorm on the batches of both ranks put together."""
    dtype = payload.get("dtype", torch.float64)
    settings = {"dtype": torch.promote_types(dtype, torch.float32), **payload.get("settings", {})}
    shape = payload.get("shape", ())
    parts = batches(payload["rows"], shape, dtype)
    norm = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
    torch.manual_seed(0)
    reference: nn.Module = norm[len(shape)](3, **settings)
    if reference.weight is not None:
        nn.init.normal_(reference.weight)
        nn.init.normal_(reference.bias)
    sync = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(reference), dist.group.WORLD)
    start = sum(payload["rows"][: context.rank])
    mine = slice(start, start + payload["rows"][context.rank])
    whole, own = torch.cat(parts).requires_grad_(), parts[context.rank].clone().requires_grad_()
    for _ in range(2):
        expected, got = reference(whole), sync(own)
        weights = torch.linspace(-1, 2, expected.numel(), dtype=dtype).view_as(expected)
        (expected * weights).sum().backward()
        (got * weights[mine]).sum().backward()
    assert got.dtype == dtype and whole.grad is not None and own.grad is not None
    found = {"output": gap(got, expected[mine]), "input": gap(own.grad, whole.grad[mine])}
    for (name, parameter), other in zip(
        sync.named_parameters(), reference.parameters(), strict=True
    ):
        assert parameter.grad is not None and other.grad is not None
        summed = parameter.grad.clone()
        dist.all_reduce(summed)
        found[name] = gap(summed, other.grad)
    for (name, buffer), other in zip(sync.named_buffers(), reference.buffers(), strict=True):
        assert buffer.dtype == other.dtype
        found[name] = gap(buffer, other)
    if sync.running_mean is not None:
        found["eval"] = gap(sync.eval()(own), reference.eval()(own))
    return found


def gap(got: Tensor, expected: Tensor) -> float:
    """Largest difference, over the largest magnitude."""
    assert got.shape == expected.shape
    if not got.numel():
        return 0.0
    scale = expected.double().abs().max().clamp(min=1e-30)
    return float((got.double() - expected.double()).abs().max() / scale)


class GradientInside(nn.Module):
    """Uses the gradient of an inner boundary in its own forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.inner(leaf).square().sum(), leaf)
        return x + gradient


def _layers(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh(), *more, nn.Linear(3, 3))


BODIES: dict[str, Callable[[], nn.Module]] = {
    "one boundary": lambda: Block(_layers(nn.BatchNorm1d(3, momentum=None))),
    "called twice": lambda: nn.Sequential(*[Block(_layers())] * 2),
    "nested": lambda: Block(nn.Sequential(_layers(), Block(_layers()), nn.BatchNorm1d(3))),
    "three deep": lambda: Block(_layers(Block(_layers(Block(_layers()))))),
    "a gradient inside": lambda: Block(_layers(GradientInside(Block(_layers())))),
}


def plain(model: nn.Module, data: list[Tensor]) -> None:
    for x in data:
        model(x).square().sum().backward()


def retained(model: nn.Module, data: list[Tensor]) -> None:
    loss = model(data[0]).square().sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()


def joint(model: nn.Module, data: list[Tensor]) -> None:
    sum(model(x).square().sum() for x in data).backward()  # type: ignore[union-attr]


def reversed_order(model: nn.Module, data: list[Tensor]) -> None:
    losses = [model(x).square().sum() for x in data]
    for loss in reversed(losses):
        loss.backward()


def to_the_end(model: nn.Module, data: list[Tensor]) -> None:
    with set_checkpoint_early_stop(False):
        plain(model, data)


def dropped(model: nn.Module, data: list[Tensor]) -> None:
    model(data[0])
    plain(model, data)


STEPS: dict[str, Step] = {
    step.__name__: step for step in (plain, retained, joint, reversed_order, to_the_end, dropped)
}


def arms(payload: dict[str, Any], context: RankContext) -> list[str]:
    """What differs between an ordinary run and one that is checkpointed on some ranks."""
    seen = []
    for who in ((), payload["who"]):
        torch.manual_seed(0)
        model = SyncBatchNorm.convert_sync_batchnorm(BODIES[payload["body"]]())
        configure_gradient_checkpointing(model, context.rank in who)
        data = [x.requires_grad_() for x in batches((4, 7), (), torch.float32)]
        with counted_collectives() as shapes:
            STEPS[payload["step"]](model, [data[context.rank], data[1 - context.rank]])
        values = {name: value.clone() for name, value in model.state_dict().items()}
        values |= {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
        values |= {f"input {i}": x.grad for i, x in enumerate(data) if x.grad is not None}
        seen.append((values, shapes))
    (ordinary, shapes), (checkpointed, other_shapes) = seen
    assert shapes and ordinary.keys() == checkpointed.keys()
    different = [n for n, value in ordinary.items() if not torch.equal(value, checkpointed[n])]
    return different if shapes == other_shapes else [*different, "collectives"]


class Fickle(nn.Module):
    """Runs two norms in another order each time."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(SyncBatchNorm(3) for _ in range(2))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        first, second = self.norms if self.calls % 2 else reversed(self.norms)
        out: Tensor = second(first(x).tanh())
        return out


def error_of(what: str, context: RankContext) -> str:
    """The error that a wrong use raises on this rank."""
    try:
        if what == "one row":
            SyncBatchNorm(3)(torch.ones(context.rank, 3))
        else:
            block = Block(Fickle())
            configure_gradient_checkpointing(block, True)
            block(torch.rand(4, 3, requires_grad=True)).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def in_a_group_of_one(_: None, context: RankContext) -> tuple[bool, int]:
    """Whether a group of one rank gives what BatchNorm gives, and how many collectives it takes."""
    groups = [dist.new_group([rank]) for rank in range(context.size)]
    x = torch.rand(5, 3)
    torch.manual_seed(0)
    norm, plain_norm = SyncBatchNorm(3, process_group=groups[context.rank]), nn.BatchNorm1d(3)
    with counted_collectives() as shapes:
        same = torch.equal(norm(x), plain_norm(x))
    return same, len(shapes)
