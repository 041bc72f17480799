"""What a forward keeps is counted once, and told apart by where it was kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.bench.memory import ModelMemory
from harness.bench.saved_bytes import kept_by
from harness.bench.workloads import mink_unet
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

ROWS, WIDTH = 10, 4
ONE = ROWS * WIDTH * 4
"""Bytes of one tensor of this shape."""


class Block(GradientCheckpointingMixin, nn.Module):
    def __init__(self, use_checkpoint: bool) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self._gradient_checkpointed_call(self._forward, x)

    def _forward(self, x: Tensor) -> Tensor:
        return functional.silu(functional.silu(self.linear(x)))


class Model(nn.Module):
    def __init__(self, use_checkpoint: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.block = Block(use_checkpoint)

    def forward(self, x: Tensor) -> Tensor:
        # The product of the block's output with itself saves one storage, twice.
        out = self.block(self.stem(x))
        return (out * out).sum()


def counted(use_checkpoint: bool) -> dict[str, int]:
    model, x = Model(use_checkpoint), torch.randn(ROWS, WIDTH)
    kept = kept_by(model, (x,), lambda m: m(x))
    scalar = 4  # the loss
    return {
        "total": kept.bytes(kept.total) - scalar,
        "outside": kept.bytes(kept.outside),
        "boundaries": kept.bytes(kept.for_boundaries) - scalar,
        "inputs": kept.bytes(kept.inputs),
        "limit": kept.bytes(kept.limit),
    }


def test_an_ordinary_forward_keeps_what_its_layers_save() -> None:
    # Outside: the input, for the stem's weight, and the block's output. Inside: the block's input
    # for its weight, the input of each silu.
    assert counted(False) == {
        "total": 5 * ONE,
        "outside": 2 * ONE,
        "boundaries": 3 * ONE,
        "inputs": ONE,
        "limit": 3 * ONE,
    }


def test_a_checkpointed_one_keeps_what_its_boundaries_are_given() -> None:
    assert counted(True) == {
        "total": 3 * ONE,
        "outside": 2 * ONE,
        "boundaries": ONE,
        "inputs": ONE,
        "limit": 3 * ONE,
    }


def test_a_tensor_that_someone_else_keeps_counts() -> None:
    held: list[Tensor] = []

    class Holding(Model):
        def forward(self, x: Tensor) -> Tensor:
            held.append(x.clone())
            return super().forward(x)

    model, x = Holding(True), torch.randn(ROWS, WIDTH)
    kept = kept_by(model, (x,), lambda m: m(x))

    assert kept.bytes(kept.for_boundaries) == 2 * ONE + 4


def test_a_model_keeps_no_more_than_the_limit_and_its_figures_say_so() -> None:
    memory = ModelMemory("tiny", "tiny", lambda: mink_unet(600), 0.5)

    over_limit, over_ordinary, inside = (
        run().estimate
        for run in (
            memory.bytes_over_limit,
            memory.bytes_over_ordinary,
            memory.bytes_inside_over_inputs,
        )
    )

    assert over_limit.value <= 1.05 and inside.value <= 1.05 and over_ordinary.value < 0.6
    assert over_limit.confidence == 1
    assert [b.name for b in memory.benchmarks()] == [
        "saved-over-limit-tiny",
        "saved-over-ordinary-tiny",
        "saved-inside-over-inputs-tiny",
        "step-time-tiny",
    ]


def test_a_training_step_is_timed_under_both_arms() -> None:
    memory = ModelMemory("tiny", "tiny", lambda: mink_unet(600))

    assert memory.step_time(1).details["pairs"] == 1
