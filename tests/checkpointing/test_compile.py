"""Boundaries under `torch.compile`, and `torch.compile` inside boundaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.steps import Block
from wcn_ckpt import replay_options

# Dynamo itself looks at the `.grad` of tensors that are no leaves.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script"),
]


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
    made.use_checkpoint = False
    assert torch.equal(compiled(torch.ones(5, 4)), made(torch.ones(5, 4)))


class Codebook(nn.Module):
    """Reads its moving average, then writes it."""

    book: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("book", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        out = x * self.book.clone()
        with torch.no_grad():
            self.book.mul_(0.5).add_(0.5 * x.mean(0))
        return out


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_allow_compile_keeps_one_update_of_norm_statistics(backend: str, momentum: float) -> None:
    def make() -> Block:
        torch.manual_seed(0)
        return Uncounted(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum), nn.Tanh())
        )

    expected, made = make(), make()
    made.use_checkpoint = True
    replay_options(made, allow_compile=True)
    compiled = torch.compile(made, backend=backend, fullgraph=True)
    x = torch.randn(5, 4)
    for _ in range(2):
        expected(x).square().sum().backward()
        compiled(x).square().sum().backward()

    assert made.body.get_submodule("1").num_batches_tracked == 2
    for a, b in zip(expected.buffers(), made.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    for p, q in zip(expected.parameters(), made.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_graph_break_inside_an_allowed_boundary_is_refused() -> None:
    """A cumulative average divides by a number that Dynamo cannot trace."""
    made = Uncounted(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)))
    made.use_checkpoint = True
    replay_options(made, allow_compile=True)
    compiled = torch.compile(made, backend="aot_eager")

    with pytest.raises(RuntimeError, match=r"torch\.compile could not trace the inside"):
        compiled(torch.randn(5, 4))


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_allow_compile_still_refuses_state_that_is_read(watched: bool, fullgraph: bool) -> None:
    made = Uncounted(nn.Sequential(nn.Linear(4, 4), Codebook(), nn.Tanh()))
    made.use_checkpoint = True
    replay_options(made, allow_compile=True)
    if watched:
        made(torch.randn(5, 4)).sum().backward()
    compiled = torch.compile(made, backend="aot_eager", fullgraph=fullgraph)

    with pytest.raises(RuntimeError, match=r"reads and writes.*torch\.compile would replay"):
        compiled(torch.randn(5, 4))


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


def test_a_custom_checkpoint_function_after_a_graph_break_gets_the_call_unchanged() -> None:
    calls = []

    @torch.compiler.disable
    def custom(fn: Any, *args: Any) -> Any:
        calls.append((fn, args))
        return fn(*args)

    made = block(norm=False)
    made._gradient_checkpointing_func = custom
    x = torch.randn(5, 4)
    torch.compile(made, backend="aot_eager")(x).sum().backward()

    ((fn, args),) = calls
    assert fn == made._forward
    assert args == (x,)


def test_a_graph_break_inside_a_boundary_without_state_is_no_error() -> None:
    class Breaking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return x.sin()

    made = Uncounted(nn.Sequential(nn.Linear(4, 4), Breaking(), nn.Tanh()))
    made.use_checkpoint = True
    x = torch.randn(5, 4)
    made(x).sum().backward()
    expected = [p.grad for p in made.parameters()]
    made.zero_grad()
    torch.compile(made, backend="aot_eager")(x).sum().backward()

    for parameter, grad in zip(made.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)


def test_dynamo_compiles_nothing_of_the_replay_itself() -> None:
    """Its guards would hold on to weak tables, whose entries may die while it compiles."""
    traced: list[str] = []
    hook = torch._dynamo.convert_frame.register_bytecode_hook(
        lambda code, _: traced.append(code.co_filename)
    )
    made = Uncounted(nn.Sequential(nn.Linear(4, 4), Codebook()))
    made.use_checkpoint = True
    replay_options(made, allow_compile=True)
    with hook, pytest.raises(RuntimeError, match=r"torch\.compile"):
        torch.compile(made, backend="eager")(torch.randn(5, 4))

    assert not [name for name in traced if "checkpointing/replay" in name]
