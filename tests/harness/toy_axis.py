"""A toy axis value, subject and input; loaded on ranks by file name."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wcn_ckpt.nn.modules import GradientCheckpointingMixin


class ToyBlock(GradientCheckpointingMixin, nn.Module):
    """Two linear layers around a BatchNorm."""

    def __init__(self, width: int, use_checkpoint: bool = False) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        self.layers = nn.Sequential(
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self._gradient_checkpointed_call(self.layers, x)
        return y


class NoisyBlock(ToyBlock):
    """A block whose forward is not reproducible: it draws from the operating system."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-3 * torch.rand(1, generator=_unseeded())


def _unseeded() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


def batch(*, seed: int, rank: int, microbatch: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * seed + 10 * rank + microbatch)
    return torch.randn(16, width, generator=generator).requires_grad_()


def freeze(module: nn.Module, frozen: bool) -> None:
    if frozen:
        first = next(module.parameters())
        first.requires_grad_(False)


def break_batch_norm(module: nn.Module, broken: bool) -> None:
    if broken:
        raise ArithmeticError("the value of the toy axis arrived")
