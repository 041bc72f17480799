"""Arms and tasks that go wrong on purpose, each in one way; loaded on ranks by file name."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from harness.arms.checkpointed import install as install_checkpointed
from harness.bench.machine import resident_memory
from harness.ranks.context import RankContext
from matrix.blocks import MyBlock

Switch = Callable[[bool], None]


def _on_rank_1(module: nn.Module, action: Callable[[], object]) -> Switch:
    if os.environ["RANK"] == "1":
        module.register_forward_pre_hook(lambda *_: action() and None)
    return install_checkpointed(module)


def die(module: nn.Module) -> Switch:
    return _on_rank_1(module, lambda: os.kill(os.getpid(), signal.SIGKILL))


def hang(module: nn.Module) -> Switch:
    return _on_rank_1(module, lambda: time.sleep(3600))


def raise_in_forward(module: nn.Module) -> Switch:
    def action() -> None:
        raise ArithmeticError("planted on rank 1")

    return _on_rank_1(module, action)


def wrong_gradient(module: nn.Module) -> Switch:
    if os.environ["RANK"] == "1":
        parameter = next(module.parameters())
        parameter.register_hook(lambda gradient: gradient * 1.001)  # type: ignore[no-untyped-call]
    return install_checkpointed(module)


def drifting_buffer(module: nn.Module) -> Switch:
    def drift(*_: object) -> None:
        next(module.buffers()).data.add_(1e-3)

    module.register_forward_hook(drift)
    return install_checkpointed(module)


def drift_after_third_step(module: nn.Module) -> Switch:
    """Rank 1 moves a running mean when the optimizer has stepped three times."""
    if os.environ["RANK"] == "1":
        parameter = next(module.parameters())
        buffer = next(module.buffers())
        steps = []

        def drift(optimizer: torch.optim.Optimizer, *_: object) -> None:
            if any(parameter is p for group in optimizer.param_groups for p in group["params"]):
                steps.append(optimizer)
                if len(steps) == 3:
                    buffer.data[0] += 1e-5
                    handle.remove()

        handle = register_optimizer_step_post_hook(drift)
    return install_checkpointed(module)


class RaisingBlock(MyBlock):
    """Raises in every forward, in every arm."""

    def _forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError("planted in the block")


def extra_draw(module: nn.Module) -> Switch:
    def draw(*_: object) -> None:
        torch.rand(1)

    module.register_forward_hook(draw)
    return install_checkpointed(module)


def extra_key(module: nn.Module) -> Switch:
    def register(*_: object) -> None:
        module.register_buffer("checkpoint_state", torch.zeros(1))

    module.register_forward_hook(register)
    return install_checkpointed(module)


def not_installable(module: nn.Module) -> Switch:
    raise LookupError("this arm cannot be installed")


def echo(payload: Any, context: RankContext) -> tuple[int, Any, float]:
    total = torch.ones(1)
    dist.all_reduce(total)
    return context.rank, payload, total.item()


def memory_of_bfloat16_kernels(payload: Any, context: RankContext) -> list[float]:
    """Return the MiB of this process before and after kernels for ever more shapes."""
    sizes = []
    with torch.no_grad():
        for rows in range(2, 602):
            (torch.ones(rows, 32).bfloat16() @ torch.ones(32, 64).bfloat16()).sum()
            if rows % 300 == 1:
                sizes.append(resident_memory(os.getpid()))
    return sizes


def count_frozen(payload: Any, context: RankContext) -> int:
    return gc.get_freeze_count()


def raise_on_rank_1(payload: Any, context: RankContext) -> None:
    if context.rank == 1:
        raise ArithmeticError("planted on rank 1")
    dist.all_reduce(torch.ones(1))


def raise_everywhere(payload: Any, context: RankContext) -> None:
    raise ArithmeticError(f"planted on rank {context.rank}")


def die_on_rank_1(payload: Any, context: RankContext) -> None:
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def hang_on_rank_1(payload: Any, context: RankContext) -> None:
    if context.rank == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))


def hang_everywhere(payload: Any, context: RankContext) -> None:
    time.sleep(3600)


def return_a_tensor(payload: Any, context: RankContext) -> Any:
    return payload, torch.full((3,), float(context.rank))


def return_a_lambda(payload: Any, context: RankContext) -> Any:
    return lambda: None


class OnlyHere:
    """A class that a rank knows and the parent does not."""


def return_an_unknown_class(payload: Any, context: RankContext) -> Any:
    return OnlyHere()
