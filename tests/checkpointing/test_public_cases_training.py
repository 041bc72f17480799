"""Weight norm, accumulation, hooks on saved tensors: what users asked of other checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tests.checkpointing.public import Calling, block_of, both, equal, grads


@pytest.mark.parametrize(
    "weight_norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_weight_norm_pytorch_7298(weight_norm: Callable[[nn.Module], nn.Module]) -> None:
    def run(enable: bool) -> list[Any]:
        block = block_of(nn.Sequential(weight_norm(nn.Linear(3, 3)), nn.Tanh()), enable)
        block(torch.randn(2, 3)).square().sum().backward()
        return grads(block)

    assert equal(*both(run))


def test_four_accumulated_steps_with_dropout_pytorch_checkpoint_3() -> None:
    def run(enable: bool) -> list[Any]:
        layers = (nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(8), nn.Linear(8, 2))
        block = block_of(nn.Sequential(*layers), enable)
        for _ in range(4):
            (block(torch.randn(5, 4)).square().mean() / 4).backward()
        return grads(block)

    assert equal(*both(run))


def test_hooks_on_saved_tensors_in_a_block_pytorch_115255() -> None:
    def hooked(body: nn.Module, x: Tensor) -> Tensor:
        with saved_tensors_hooks(lambda saved: saved * 1, lambda packed: packed):
            out: Tensor = body(x).sin()
        return out

    def run(enable: bool) -> list[Any]:
        block = Calling(nn.Linear(3, 3), hooked, enable)
        block(torch.randn(2, 3, requires_grad=True)).square().sum().backward()
        return grads(block)

    assert equal(*both(run))
