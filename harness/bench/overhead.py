"""What a boundary costs besides its recomputation, over torch's checkpoint alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.bench.benchmark import Benchmark, Measurement
from harness.bench.paired import Pair, threads, time_pairs, time_ratio
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

ROWS, CHANNELS = 64, 32
WARM_UP = 20
"""Steps of each side of a round before any is counted: learning ends within them."""


class _Plain(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self._forward(x)

    def _forward(self, x: Tensor) -> Any:
        return self.body(x)


class _Bare(_Plain):
    def forward(self, x: Tensor) -> Any:
        return checkpoint(self._forward, x, use_reentrant=False)


class _Boundary(GradientCheckpointingMixin, _Plain):
    def __init__(self, body: nn.Module, enable: bool, options: dict[str, Any]) -> None:
        super().__init__(body)
        self._init_gradient_checkpointing(enable, **options)

    def forward(self, x: Tensor) -> Any:
        return self._gradient_checkpointed_call(self._forward, x)


def overhead(
    rounds: int,
    *,
    norm: type[nn.Module] = nn.BatchNorm1d,
    depth: int = 2,
    enable: bool = True,
    pairs: int = 100,
    **options: Any,
) -> Measurement:
    """Time a forward and a backward of a boundary over a reference with the same layers.

    Args:
        rounds: number of rounds. Each has new modules, so that no layout of memory decides.
        norm: class of the norm layers.
        depth: number of Linear-norm-ReLU triples on 64 x 32 values.
        enable: whether the boundary is enabled; if not, the reference is a plain call.
        pairs: pairs of steps of a round, on one thread.
        options: replay options of the boundary.
    """
    with threads(1):
        return time_ratio([_round(norm, depth, enable, pairs, options) for _ in range(rounds)])


def _round(
    norm: type[nn.Module], depth: int, enable: bool, pairs: int, options: dict[str, Any]
) -> list[Pair]:
    torch.manual_seed(0)
    reference: nn.Module = (_Bare if enable else _Plain)(_body(norm, depth))
    judged = _Boundary(_body(norm, depth), enable, options)
    x = torch.randn(ROWS, CHANNELS, requires_grad=True)
    return time_pairs(_step(judged, x), _step(reference, x), pairs, warm_up=WARM_UP)


def _body(norm: type[nn.Module], depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(CHANNELS, CHANNELS), norm(CHANNELS), nn.ReLU()]
    return nn.Sequential(*layers)


def _step(module: nn.Module, x: Tensor) -> Callable[[], None]:
    def step() -> None:
        module(x).sum().backward()

    return step


def _named(name: str, doc: str, at_most: float | None = None, **arguments: Any) -> Benchmark:
    return Benchmark(
        name=name,
        group="quick",
        unit="ratio",
        doc=doc,
        run=partial(overhead, **arguments),
        samples=20,
        at_most=at_most,
    )


_OVER = "over bare torch.utils.checkpoint, 64 x 32"

OVERHEADS = (
    _named(
        "boundary-disabled",
        "a disabled boundary over a plain call, tiny block",
        at_most=1.01,
        enable=False,
    ),
    _named(
        "boundary-no-state",
        f"an enabled boundary of two LayerNorm, everything on, {_OVER}",
        at_most=1.04,
        norm=nn.LayerNorm,
    ),
    _named(
        "boundary-2-batchnorm",
        f"an enabled boundary of two BatchNorm, everything on, {_OVER}",
        at_most=1.04,
    ),
    _named(
        "boundary-24-batchnorm",
        f"an enabled boundary of 24 BatchNorm, everything on, {_OVER}",
        at_most=1.03,
        depth=24,
        pairs=25,
    ),
    _named(
        "boundary-without-guard",
        "the boundary of two BatchNorm without the guard: what is left without it",
        guard=False,
    ),
    _named(
        "boundary-norm-state-alone",
        "the boundary of two BatchNorm without guard and learning",
        guard=False,
        learn=False,
    ),
)
"""The last two say what parts of the third one cost."""
