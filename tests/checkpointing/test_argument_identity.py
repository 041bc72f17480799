"""A replay takes the branch that its forward took where code asks which object it was given."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.public import both
from wcn_ckpt import make_checkpointable
from wcn_ckpt.checkpointing.errors import ReplayGuardError


def boundary(module: Any, enable: bool) -> Any:
    if enable:
        make_checkpointable(module, lambda child: child is module, use_checkpoint=True)
    return module


def test_self_attention_with_its_input_by_position_and_by_keyword() -> None:
    def run(enable: bool) -> list[Tensor]:
        attention = boundary(nn.MultiheadAttention(4, 2, batch_first=True), enable)
        before = nn.Linear(4, 4)
        x = before(torch.rand(1, 3, 4))
        attention(x, key=x, value=x)[0].sin().sum().backward()
        return [p.grad for p in (*attention.parameters(), *before.parameters())]

    plain, checkpointed = both(run)

    assert all(map(torch.equal, plain, checkpointed))


def within_a_boundary(block: nn.Module, h: Tensor, enable: bool) -> Tensor:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            x = x.sin()
            out: Tensor = self.block(x, x)
            return out.cos()

    made: Tensor = boundary(Outer(), enable)(h)
    return made


def on_the_cpu(block: nn.Module, h: Tensor, enable: bool) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        out: Tensor = block(h, h)
    return out


@pytest.mark.parametrize("call", [within_a_boundary, on_the_cpu])
def test_a_tensor_given_twice_by_position_is_one_where_hooks_save_it(call: Any) -> None:
    def run(enable: bool) -> Any:
        block = boundary(Chooses(lambda x, context: context is x), enable)
        start = nn.Parameter(torch.ones(2))
        call(block, start * 1, enable).sum().backward()
        return block.first.grad.item(), start.grad.tolist(), block.second.grad

    plain, checkpointed = both(run)

    assert checkpointed == plain and plain[2] is None


class Chooses(nn.Module):
    """Uses one weight or the other."""

    def __init__(self, chooses: Callable[..., bool]) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor(2.0))
        self.second = nn.Parameter(torch.tensor(3.0))
        self.chooses = chooses

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return (x * (self.first if self.chooses(x, *args, **kwargs) else self.second)).sin()


class Plain:
    """An object of an ordinary class."""

    def __init__(self, number: int = 0) -> None:
        self.number = number


MARK, TABLE = Plain(), {}
TABLE[MARK] = True


def counts(x: Tensor, held: Plain) -> bool:
    held.number += 1
    return held.number == 1


def with_attribute(h: Tensor) -> Tensor:
    h.scale = 3.0  # type: ignore[attr-defined]  # the point
    return h


CASES: dict[str, tuple[Callable[..., bool], Callable[[Tensor], tuple[tuple[Any, ...], Any]]]] = {
    "keyword that is the input": (
        lambda x, context: context is x,
        lambda h: ((h,), {"context": h}),
    ),
    "entry that is the input": (lambda x, held: held["a"] is x, lambda h: ((h, {"a": h}), {})),
    "sentinel": (lambda x, mask: mask is MARK, lambda h: ((h, MARK), {})),
    "key of a table": (lambda x, mark: TABLE.get(mark, False), lambda h: ((h, MARK), {})),
    "member of a set": (lambda x, mark, active: mark in active, lambda h: ((h, MARK, {MARK}), {})),
    "counter": (counts, lambda h: ((h, Plain()), {})),
    "attribute of a tensor": (
        lambda x, other: hasattr(other, "scale"),
        lambda h: ((h,), {"other": with_attribute(h * 2)}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_choice_by_what_was_given(name: str) -> None:
    chooses, given = CASES[name]

    def run(enable: bool) -> Any:
        block = boundary(Chooses(chooses), enable)
        start = nn.Parameter(torch.ones(2))
        args, kwargs = given(start * 1)
        block(*args, **kwargs).sum().backward()
        return block.first.grad.item(), start.grad.tolist(), block.second.grad

    plain, checkpointed = both(run)

    assert checkpointed == plain and plain[2] is None


def test_an_object_is_given_back_as_it_was() -> None:
    """A replay ends before the block has set back what it set."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor, held: Plain) -> Tensor:
            held.number += 1
            out = (self.w * x * held.number).sin()
            held.number -= 1
            held.late = 1  # type: ignore[attr-defined]  # the point
            del held.late  # type: ignore[attr-defined]
            return out

    def run(enable: bool) -> Any:
        block, held = boundary(Nested(), enable), Plain(1)
        block(torch.ones(2), held).sum().backward()
        return block.w.grad.tolist(), vars(held)

    plain, checkpointed = both(run)

    assert checkpointed == plain and plain[1] == {"number": 1}


class Node:
    """A node of a graph, equal to others of its name."""

    def __init__(self, name: str) -> None:
        self.links: dict[Node, int] = {}
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.name == other.name


class Settings:
    """A property over an entry of the same name."""

    def __init__(self) -> None:
        self.__dict__["scale"] = torch.tensor(2.0)

    @property
    def scale(self) -> Tensor:
        held: Tensor = self.__dict__["scale"]
        return held


def test_objects_that_are_hard_to_rebuild() -> None:
    first, second = Node("a"), Node("b")
    first.links[second] = second.links[first] = 1

    def run(enable: bool) -> Any:
        block = boundary(
            Chooses(lambda x, node, settings: len(node.links) == 1 and settings.scale > 1), enable
        )
        block(torch.ones(2), first, Settings()).sum().backward()
        return block.first.grad.item()

    plain, checkpointed = both(run)

    assert checkpointed == plain


def test_an_iterator_that_the_block_leaves_alone_is_no_error() -> None:
    held = {"loader": iter([1, 2])}
    block = boundary(Chooses(lambda x, held: True), True)

    block(torch.ones(2), held).sum().backward()

    assert list(held["loader"]) == [1, 2] and block.first.grad is not None


@pytest.mark.parametrize(
    ("made", "said"), [(iter, "was used up"), (enumerate, "may have been used up")]
)
def test_an_iterator_that_was_used_is_refused(made: Callable[[Any], Any], said: str) -> None:
    block = boundary(Chooses(lambda x, held: bool(next(held))), True)
    loss = block(torch.ones(2), made([1, 2])).sum()

    with pytest.raises(ReplayGuardError, match=said):
        loss.backward()


class Loader:
    """An iterator whose length stays what it is, as that of a data loader does.

    It says how it is copied, so that it is not taken apart.
    """

    def __init__(self, items: list[int]) -> None:
        self.items = iter(items)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> int:
        return next(self.items)

    def __len__(self) -> int:
        return 2

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


def test_an_iterator_whose_length_tells_nothing_is_refused() -> None:
    block = boundary(Chooses(lambda x, held: bool(next(held))), True)
    loss = block(torch.ones(2), Loader([1, 2])).sum()

    with pytest.raises(ReplayGuardError, match="may have been used up"):
        loss.backward()


def test_an_object_that_is_given_the_output_is_freed_with_it() -> None:
    class Context:
        out: Any

    block = boundary(Chooses(lambda x, held: True), True)
    held = Context()
    held.out = block(torch.ones(2), held)
    out = weakref.ref(held.out)
    del held
    gc.collect()

    assert out() is None
