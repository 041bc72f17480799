"""Blocks that read running statistics of their norm layers, or switch modes as they run."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.checkpointing.steps import STYLES, Block, assert_checkpointing_changes_nothing
from wcn_ckpt import replay_options
from wcn_ckpt.checkpointing.replay.memory import memory_of
from wcn_ckpt.nn.modules import SyncBatchNorm


class Body(nn.Module):
    """A linear layer and a norm."""

    def __init__(
        self, norm: type[nn.Module] = nn.BatchNorm1d, momentum: float | None = 0.1
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = norm(6, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.linear(x))
        return out.tanh()


class ReadsAfterwards(Body):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + self.norm.running_var.clone())


class ReadsBefore(Body):
    def forward(self, x: Tensor) -> Tensor:
        mean = self.norm.running_mean.clone()
        return super().forward(x) * (1 + mean)


class ReadsAllBuffers(Body):
    def forward(self, x: Tensor) -> Tensor:
        scale = torch.stack([buffer.float().sum() for buffer in self.buffers()]).sum()
        return super().forward(x) * scale


class ReadsTheCounter(Body):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.norm.num_batches_tracked.clone()


class ReadsInAFunction(Body):
    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        out: Tensor = self.norm(h)
        return out + F.batch_norm(
            h, self.norm.running_mean.clone(), self.norm.running_var.clone(), training=False
        )


class EvaluatesForAMoment(Body):
    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        self.norm.eval()
        before: Tensor = self.norm(h)
        self.norm.train()
        return before


class EvaluatesFromThenOn(Body):
    def forward(self, x: Tensor) -> Tensor:
        self.norm.eval()
        return super().forward(x)


class Toggles(Body):
    def forward(self, x: Tensor) -> Tensor:
        self.norm.train(not self.norm.training)
        return super().forward(x)


class TracksForAMoment(Body):
    def forward(self, x: Tensor) -> Tensor:
        first = super().forward(x)
        self.norm.track_running_stats = False
        second = super().forward(2 * x)
        self.norm.track_running_stats = True
        return first + second


class AnnealsItsMomentum(Body):
    def forward(self, x: Tensor) -> Tensor:
        self.norm.momentum *= 0.9
        return super().forward(x)


BODIES = (
    *(ReadsAfterwards, ReadsBefore, ReadsAllBuffers, ReadsTheCounter, ReadsInAFunction),
    *(EvaluatesForAMoment, EvaluatesFromThenOn, Toggles, TracksForAMoment, AnnealsItsMomentum),
)


# An ordinary backward of the first of two joint forwards, in eval mode, computes with what the
# second has written: torch saves running statistics by reference, and a norm writes them unnoticed.
CASES = [
    (body, style) for body in BODIES for style in STYLES if (body, style) != (Toggles, "joint")
]


@pytest.mark.parametrize(("body", "style"), CASES)
def test_a_replay_finds_the_statistics_of_its_forward(body: type[Body], style: str) -> None:
    assert_checkpointing_changes_nothing(Block(body()), style, torch.randn(8, 6), steps=5)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, SyncBatchNorm])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_norm_that_is_only_trained_costs_no_copy(
    norm: type[nn.Module], momentum: float | None
) -> None:
    block = Block(Body(norm, momentum))
    block.gradient_checkpointing = True
    for _ in range(5):
        block(torch.randn(8, 6)).sum().backward()

    plan = memory_of(block).plan
    assert plan is not None
    assert plan.kept == []
    assert [entry.norm for entry in plan.norms] == [block.body.norm]
    assert plan.quiet


def test_boundaries_that_look_inside_one_another_do_not_see_each_other() -> None:
    inner = Block(Body())
    middle = Block(nn.Sequential(inner))
    outer = Block(nn.Sequential(middle))
    for block in (inner, middle, outer):
        block.gradient_checkpointing = True
    for _ in range(5):
        outer(torch.randn(8, 6)).sum().backward()

    for block in (inner, middle, outer):
        plan = memory_of(block).plan
        assert plan is not None
        assert plan.kept == []


def test_instance_norm_that_is_only_trained_costs_no_copy() -> None:
    block = Block(nn.Sequential(nn.Linear(6, 6), nn.InstanceNorm1d(6, track_running_stats=True)))
    block.gradient_checkpointing = True
    block(torch.randn(2, 6, 6)).sum().backward()

    plan = memory_of(block).plan
    assert plan is not None
    assert plan.kept == []


def test_modes_are_given_back_after_a_replay_that_ends_within_a_switch() -> None:
    block = Block(EvaluatesForAMoment())
    block.gradient_checkpointing = True

    for _ in range(4):
        block(torch.randn(8, 6)).sum().backward()
        assert block.body.norm.training


def test_a_read_that_nothing_looked_for_gives_nan_instead_of_a_wrong_number() -> None:
    block = Block(ReadsAfterwards())
    block.gradient_checkpointing = True
    replay_options(block, learn=False)
    x = torch.randn(8, 6, requires_grad=True)

    block(x).sum().backward()

    assert x.grad is not None
    assert math.isnan(float(x.grad.sum()))


def test_a_boundary_below_and_the_one_around_it_both_keep_what_is_read() -> None:
    inner = Block(ReadsAfterwards())
    model = Block(nn.Sequential(inner, nn.Tanh()))

    assert_checkpointing_changes_nothing(model, "joint", torch.randn(8, 6), steps=5)


class Compiled(Body):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(super().forward(x))
        return out


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_function_that_is_compiled_inside_is_compiled_once() -> None:
    compilations: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        compilations.append(graph)
        return graph.forward

    block = Block(Compiled())
    block.body.inner = torch.compile(squared, backend=backend, fullgraph=True)
    block.gradient_checkpointing = True
    for _ in range(4):
        block(torch.randn(8, 6)).sum().backward()
    assert len(compilations) == 1


def squared(x: Tensor) -> Tensor:
    """Something to compile."""
    return x * x
