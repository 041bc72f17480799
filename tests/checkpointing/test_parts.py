"""Objects, aliases and other mutable arguments: a replay gets them as they were at entry."""

from __future__ import annotations

import collections
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.checkpointing.public import Calling, both, equal, grads
from wcn_ckpt import ReplayGuardError
from wcn_ckpt.checkpointing.parts import Parts


class Item:
    def __init__(self, feats: Any = None) -> None:
        self.feats = feats
        self.uses = 0


class Slotted:
    __slots__ = ("feats", "uses")

    def __init__(self, feats: Tensor) -> None:
        self.feats, self.uses = feats, 0


class PrivateSlots(Slotted):
    __slots__ = ("__hidden",)

    def __init__(self, feats: Tensor) -> None:
        super().__init__(feats)
        self.__hidden = [feats]

    @property
    def hidden(self) -> list[Tensor]:
        return self.__hidden


class AttributeDict(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Growing(list[Tensor]):
    label = "a"


def write_back(body: nn.Module, item: Any) -> Tensor:
    item.uses += 1
    item.feats = body(item.feats).sigmoid() * item.uses
    out: Tensor = item.feats
    return out


def write_key(body: nn.Module, item: Any) -> Tensor:
    item["feats"] = body(item["feats"]).sigmoid()
    out: Tensor = item["feats"]
    return out


def append(body: nn.Module, rows: Any) -> Tensor:
    rows.append(body(rows[0]))
    return torch.cat(list(rows)).sin()


def add(body: nn.Module, given: Any) -> Tensor:
    x, seen = given
    seen.add(len(seen))
    out: Tensor = body(x).sin() * len(seen)
    return out


def increase(body: nn.Module, given: Any) -> Tensor:
    x, numbers = given
    numbers[0] += 1
    out: Tensor = body(x).sin() * float(numbers[0])
    return out


OBJECTS: dict[str, tuple[Callable[[Tensor], Any], Callable[..., Tensor]]] = {
    "object": (Item, write_back),
    "slots": (Slotted, write_back),
    "private slots": (PrivateSlots, write_back),
    "namespace": (lambda x: types.SimpleNamespace(feats=x, uses=0), write_back),
    "dictionary class": (lambda x: AttributeDict(feats=x, uses=0), write_back),
    "user dictionary": (lambda x: collections.UserDict(feats=x), write_key),
    "ordered dictionary class": (
        lambda x: type("Ordered", (collections.OrderedDict,), {})(feats=x),
        write_key,
    ),
    "list class": (lambda x: Growing([x]), append),
    "deque": (lambda x: collections.deque([x]), append),
    "set": (lambda x: (x, set()), add),
    "array": (lambda x: (x, np.zeros(2)), increase),
    "bytes": (lambda x: (x, bytearray(2)), increase),
}


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("how", ["position", "keyword", "inside"])
def test_an_object_that_the_block_changes_is_replayed_as_it_was(name: str, how: str) -> None:
    make, function = OBJECTS[name]

    def call(body: nn.Module, given: Any = None, holder: Any = None) -> Tensor:
        return function(body, given if holder is None else holder.feats[0])

    def run(enable: bool) -> list[Any]:
        block = Calling(nn.Linear(3, 3), call, enable)
        x = torch.randn(4, 3, requires_grad=True)
        given = make(x * 1)
        if how == "position":
            out = block(given)
        elif how == "keyword":
            out = block(given=given)
        else:
            out = block(holder=Item([given]))
        out.square().sum().backward()
        return [x.grad, *grads(block)]

    assert equal(*both(run))


def test_an_attribute_assigned_by_the_caller_is_replayed_as_it_was() -> None:
    def run(enable: bool) -> list[Any]:
        block = Calling(nn.Linear(3, 3), lambda body, item: body(item.feats).sin(), enable)
        item = Item(torch.randn(4, 3))
        out = block(item)
        item.feats = torch.zeros(4, 3)
        out.sum().backward()
        return grads(block)

    assert equal(*both(run))


def test_a_tensor_of_an_object_changed_in_place_is_refused() -> None:
    block = Calling(nn.Linear(3, 3), lambda body, item: body(item.feats).sin(), True)
    item = Item(torch.randn(4, 3))
    out = block(item)
    item.feats.mul_(2)

    with pytest.raises(ReplayGuardError, match="argument 0 was changed in place"):
        out.sum().backward()


def test_what_is_passed_twice_is_one_object_in_the_replay() -> None:
    def function(body: nn.Module, a: Any, b: Any, keyword: Any) -> Tensor:
        a["x"] = body(a["x"]).sin()
        keyword.feats.append(b["x"] * 2)
        return sum((item.sin() for item in a["rows"]), torch.zeros(()))

    def run(enable: bool) -> list[Any]:
        block = Calling(nn.Linear(3, 3), function, enable)
        rows: list[Tensor] = []
        given = {"x": torch.randn(4, 3), "rows": rows}
        block(given, given, keyword=Item(rows)).sum().backward()
        return grads(block)

    assert equal(*both(run))


def rebuilt(*values: Any) -> list[Any]:
    parts = Parts()
    rebuilds = [parts.take_argument(value) for value in values]
    built: dict[int, Any] = {}
    return [rebuild(parts.tensors, built) for rebuild in rebuilds]


def test_objects_that_refer_to_each_other() -> None:
    item = Item()
    item.feats = {"self": item, "list": [item], item: 1}
    tied: list[Any] = []
    tied.append((tied, Item(tied)))
    twin, twin_tied = rebuilt(item, tied)

    assert twin is not item
    assert twin.feats["self"] is twin
    assert twin.feats["list"][0] is twin
    assert twin.feats[twin] == 1
    assert twin_tied[0][1].feats is twin_tied


def test_a_tensor_that_occurs_twice_is_found_once() -> None:
    x = torch.ones(2)
    parts = Parts()
    parts.take_argument({"a": x, "b": [x]})
    parts.take_argument(Item(x))

    assert [tensor is x for tensor in parts.tensors] == [True]


def test_what_is_left_whole() -> None:
    class Copied:
        def __reduce__(self) -> str:
            return "copied"

    class Made:
        def __new__(cls) -> Made:
            return super().__new__(cls)

    whole = [nn.Linear(1, 1), threading.Event(), torch.Generator(), Copied(), Made(), print]

    assert all(a is b for a, b in zip(whole, rebuilt(*whole), strict=True))


def test_more_than_is_taken_apart_in_each_call_is_left_whole() -> None:
    first = last = Item()
    for _ in range(5000):
        last.feats = Item()
        last = last.feats
    many = [Item() for _ in range(5000)]
    x = torch.ones(2)
    chain, wide, others = rebuilt(first, many, {"x": x})

    assert chain is first
    assert wide is many
    assert others is not None and others["x"] is x


@pytest.mark.parametrize("kind", ["generator", "list_iterator"])
def test_an_iterator_that_the_forward_uses_up_is_refused(kind: str) -> None:
    def numbers() -> Iterator[float]:
        yield 1.0

    block = Calling(nn.Linear(3, 3), lambda body, x, given: body(x).sin() * next(given), True)
    out = block(torch.randn(4, 3), numbers() if kind == "generator" else iter([1.0]))

    with pytest.raises(ReplayGuardError, match=rf"iterator among its arguments \({kind}"):
        out.sum().backward()
