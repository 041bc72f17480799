"""Boundaries under `torch.compile`, and `torch.compile` inside boundaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.steps import Block

# Dynamo itself looks at the `.grad` of tensors that are no leaves.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Uncounted(Block):
    """A boundary that Dynamo can trace: it changes nothing of its own."""

    def _forward(self, x: Tensor) -> Any:
        return self.body(x)


class Around(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(self.head(x))
        return out.sin()


def block(norm: bool) -> Block:
    torch.manual_seed(0)
    made = Uncounted(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4) if norm else nn.Tanh()))
    made.use_checkpoint = True
    return made


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_boundary_that_keeps_state_is_refused(fullgraph: bool, nested: bool) -> None:
    module: nn.Module = Around(block(norm=True)) if nested else block(norm=True)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=fullgraph)

    with pytest.raises(RuntimeError, match=r"torch\.compile cannot trace how that state is kept"):
        compiled(torch.randn(5, 4))


def test_dynamo_saying_that_it_compiles_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    made = block(norm=True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(RuntimeError, match=r"torch\.compile"):
        made(torch.randn(5, 4))


def test_an_inactive_boundary_that_would_keep_state_compiles() -> None:
    made = block(norm=True).eval()
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(5, 4)), made(torch.ones(5, 4)))


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_boundary_without_state_is_compiled_through(fullgraph: bool, nested: bool) -> None:
    def make() -> nn.Module:
        inner = block(norm=False)
        torch.manual_seed(1)
        return Around(inner) if nested else inner

    expected, module = make(), make()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=fullgraph)
    x = torch.randn(5, 4)
    compiled(x).sum().backward()
    expected(x).sum().backward()

    for a, b in zip(expected.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_compiling_inside_a_boundary_keeps_its_state() -> None:
    ordinary, made = block(norm=True), block(norm=True)
    ordinary.use_checkpoint = False
    made.body = torch.compile(made.body, backend="aot_eager")
    x = torch.randn(5, 4)
    for _ in range(2):
        for module in (ordinary, made):
            module(x).sum().backward()

    assert made.body.get_submodule("1").num_batches_tracked == 2
    for a, b in zip(ordinary.buffers(), made.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_boundary_excluded_from_the_compiler_keeps_its_state() -> None:
    module = Around(block(norm=True))
    module.block.forward = torch.compiler.disable(module.block.forward)
    compiled = torch.compile(module, backend="aot_eager")
    compiled(torch.randn(5, 4)).sum().backward()

    assert module.block.body.get_submodule("1").num_batches_tracked == 1
