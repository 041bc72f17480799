"""The clock runs in our code and stands in the block's."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from harness.bench.own_share import Clock, own_time
from wcn_ckpt.checkpointing import call
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

NAP = 0.05


class Sleeping(GradientCheckpointingMixin, nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self._init_gradient_checkpointing(True)
        self.linear = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self._gradient_checkpointed_call(self._forward, x)

    def _forward(self, x: Tensor) -> Tensor:
        time.sleep(NAP)
        return self.linear(x if self.inner is None else self.inner(x)).tanh()


@pytest.mark.parametrize("active", [True, False])
def test_what_the_block_computes_is_not_counted(active: bool) -> None:
    model = Sleeping(Sleeping()).train(active)
    frame = call.ReplayFrame

    with own_time(model) as clock, torch.set_grad_enabled(active):
        start = time.perf_counter()
        loss = model(torch.ones(3, 4)).sum()
        if active:
            loss.backward()
        whole = time.perf_counter() - start

    assert 0 < clock.seconds <= whole - (4 if active else 2) * NAP
    assert call.ReplayFrame is frame
    assert "_gradient_checkpointed_call" not in vars(model)


def test_a_clock_counts_while_it_runs() -> None:
    clock = Clock()
    clock.stop()
    assert clock.seconds == 0
    clock.start()
    clock.standing(lambda: time.sleep(NAP))()
    clock.stop()

    assert clock.seconds < NAP
