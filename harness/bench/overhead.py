"""What a boundary costs besides its recomputation, over torch's checkpoint alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.bench.paired import Ratio, ratio_of
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

ROWS, CHANNELS = 64, 32


def _body(norm: type[nn.Module], depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(CHANNELS, CHANNELS), norm(CHANNELS), nn.ReLU()]
    return nn.Sequential(*layers)


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


@dataclass(frozen=True)
class Overhead:
    """One figure: a boundary against a reference with the same layers.

    Args:
        name: its name on the command line and in the output.
        norm: class of the norm layers.
        depth: number of Linear-norm-ReLU triples.
        limit: the ratio that the project sets itself.
        enable: whether the boundary is enabled; if not, the reference is a plain call.
        options: replay options of the boundary.
    """

    name: str
    norm: type[nn.Module]
    depth: int
    limit: float
    enable: bool = True
    options: tuple[tuple[str, bool], ...] = ()

    def measure(self, pairs: int) -> Ratio:
        """Time a forward and a backward pass of both sides, on one thread."""
        torch.manual_seed(0)
        reference: nn.Module = (_Bare if self.enable else _Plain)(_body(self.norm, self.depth))
        judged = _Boundary(_body(self.norm, self.depth), self.enable, dict(self.options))
        x = torch.randn(ROWS, CHANNELS, requires_grad=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return ratio_of(_step(judged, x), _step(reference, x), pairs)
        finally:
            torch.set_num_threads(threads)


def _step(module: nn.Module, x: Tensor) -> Callable[[], None]:
    def step() -> None:
        module(x).sum().backward()

    return step


_OFF = (("learn", False), ("guard", False))

OVERHEADS = (
    Overhead("boundary-2-batchnorm", nn.BatchNorm1d, 2, limit=1.06),
    Overhead("boundary-no-state", nn.LayerNorm, 2, limit=1.06),
    Overhead("boundary-24-batchnorm", nn.BatchNorm1d, 24, limit=1.03),
    Overhead("boundary-disabled", nn.BatchNorm1d, 2, limit=1.02, enable=False),
    Overhead("norm-state-alone", nn.BatchNorm1d, 2, limit=1.05, options=_OFF),
    Overhead("no-guard", nn.BatchNorm1d, 2, limit=1.06, options=(("guard", False),)),
)
"""Every named figure; the last two say what parts of the first one cost."""
