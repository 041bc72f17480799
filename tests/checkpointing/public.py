"""A small frame for the faults that users reported in public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.checkpointing.steps import Block
from wcn_ckpt import GradientCheckpointingMixin, configure_gradient_checkpointing


class Calling(GradientCheckpointingMixin, nn.Module):
    """A boundary around `function(body, ...)`."""

    def __init__(self, body: nn.Module, function: Callable[..., Any], enable: bool) -> None:
        super().__init__()
        self._init_gradient_checkpointing(enable)
        self.body, self.function = body, function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._gradient_checkpointed_call(self._forward, *args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.body, *args, **kwargs)


def block_of(body: nn.Module, enable: bool = True) -> Block:
    block = Block(body)
    configure_gradient_checkpointing(block, enable)
    return block


def grads(module: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in module.parameters()]


def equal(a: list[Any], b: list[Any]) -> bool:
    return all(p is q or torch.equal(p, q) for p, q in zip(a, b, strict=True))


class Weighted(nn.Module):
    """Holds one weight."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))


def both(run: Callable[[bool], Any]) -> tuple[Any, Any]:
    """What a program gives in the ordinary and in the checkpointed arm, from one seed."""
    results = []
    for enable in (False, True):
        torch.manual_seed(0)
        results.append(run(enable))
    return results[0], results[1]
