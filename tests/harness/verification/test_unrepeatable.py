"""Models whose ordinary training does not repeat itself are never called safe."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import harness

NARROW = ["steps=1", "accumulation=one", "backward=plain"]


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        numbers = self.generator().random(tuple(x.shape), dtype=np.float32)
        return self.linear(x).sin() * torch.from_numpy(numbers)

    def generator(self) -> np.random.Generator:
        raise NotImplementedError


class Unseeded(Drawing):
    def generator(self) -> np.random.Generator:
        return np.random.default_rng()


@functools.lru_cache
def cached() -> np.random.Generator:
    return np.random.default_rng(0)


class LivesOn(Drawing):
    def generator(self) -> np.random.Generator:
        return cached()


def inputs(seed: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("model", [Unseeded, LivesOn])
def test_it_is_not_called_safe_and_the_cause_is_named(model: Any) -> None:
    report = harness.verify(model, inputs, boundaries=["."], axes=NARROW)

    assert not report.passed
    (kind,) = {finding.kind for finding in report.findings}
    assert kind == "not_repeatable"
    assert "nothing can be said about checkpointing" in report.text
