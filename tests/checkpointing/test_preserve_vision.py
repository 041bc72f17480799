"""Models of timm and torchvision under their own flag, where those are installed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.steps import differences
from wcn_ckpt import preserve_replay_state


def train(model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model.train()
    for _ in range(2):
        model(torch.randn(2, 3, 64, 64, requires_grad=True)).square().sum().backward()
    seen = {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return seen | {name: buffer.clone() for name, buffer in model.named_buffers()}


def assert_preserved(ordinary: nn.Module, flagged: Any) -> None:
    safe = copy.deepcopy(flagged)
    preserved = preserve_replay_state(safe)
    expected = train(ordinary)

    assert any("num_batches_tracked" in name for name in differences(expected, train(flagged)))
    assert not differences(expected, train(safe))
    assert preserved.calls


def test_a_resnet_of_timm() -> None:
    timm = pytest.importorskip("timm", reason="needs timm")
    ordinary = timm.create_model("resnet18", num_classes=2)
    flagged = copy.deepcopy(ordinary)
    flagged.set_grad_checkpointing(True)

    assert_preserved(ordinary, flagged)


def test_a_densenet_of_torchvision() -> None:
    models = pytest.importorskip("torchvision.models", reason="needs torchvision")
    settings = {
        "growth_rate": 4,
        "block_config": (1, 1),
        "num_init_features": 4,
        "bn_size": 2,
        "num_classes": 2,
    }
    ordinary = models.DenseNet(**settings)
    flagged = models.DenseNet(**settings, memory_efficient=True)
    flagged.load_state_dict(ordinary.state_dict())

    assert_preserved(ordinary, flagged)
