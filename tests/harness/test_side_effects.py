from __future__ import annotations

import random
import types
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from harness.side_effects import SideEffects


class State:
    """A plain object that a module holds."""

    def __init__(self) -> None:
        self.seen = 0
        self.order = random.Random(2)
        self.owner: object = self


class Slotted:
    """Has slots in place of a dictionary."""

    __slots__ = ("late", "seen")

    def __init__(self) -> None:
        self.seen = 0


class Counting(nn.Module):
    """Has an attribute of each sort."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.entries: list[float] = []
        self.cache: Tensor | None = None
        self.rate = float("nan")
        self.generator = torch.Generator().manual_seed(1)
        self.order = random.Random(1)
        self.register_buffer("scale", torch.ones(2))


def test_what_has_not_changed_is_not_told() -> None:
    assert SideEffects(nn.Sequential(Counting())).attributes() == {}


def test_changed_attributes_are_told_by_path() -> None:
    model = nn.Sequential(Counting())
    effects = SideEffects(model)
    model[0].calls += 2
    model[0].entries.append(0.5)
    model[0].cache = torch.tensor([1.0])

    told = effects.attributes()

    assert told.keys() == {"0.calls", "0.entries", "0.cache"}
    assert told["0.calls"] == 2
    assert told["0.entries"] == "list of 1: [0.5]"
    assert torch.equal(told["0.cache"], torch.tensor([1.0]))


def test_what_the_lab_itself_writes_is_no_effect() -> None:
    model = nn.Sequential(Counting())
    effects = SideEffects(model)
    model[0].entries.append(0.5)
    with effects.left_out():
        model[0].calls = 3
    assert effects.attributes().keys() == {"0.entries"}

    model[0].calls = 4
    assert effects.attributes()["0.calls"] == 4


def test_a_tensor_attribute_that_is_written_in_place_has_changed() -> None:
    model = Counting()
    model.cache = torch.zeros(2)
    effects = SideEffects(model)
    model.cache[0] = 3.0

    assert torch.equal(effects.attributes()["cache"], torch.tensor([3.0, 0.0]))


def test_an_attribute_that_is_new_is_told() -> None:
    model = Counting()
    effects = SideEffects(model)
    model.late = "yes"

    assert effects.attributes() == {"late": "yes"}


def test_large_containers_are_told_by_their_length() -> None:
    model = Counting()
    effects = SideEffects(model)
    model.entries += [1.0] * 100

    assert effects.attributes() == {"entries": "list of 100"}


def holding(value: object) -> nn.Module:
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].held = value
    return model


def add_to_dict(value: dict[str, Any]) -> None:
    value["inner"]["mean"] += 1


def add_to_list(value: list[Any]) -> None:
    value[0].append(2)


def count_in_object(value: State) -> None:
    value.seen += 1


def count_in_namespace(value: types.SimpleNamespace) -> None:
    value.state.seen += 1


def write_array(value: np.ndarray) -> None:
    value[1] = 7.0


def digest(value: np.ndarray) -> str:
    return f"array of shape (2,) with digest {zlib.crc32(value.tobytes()):08x}"


def write_tensor(value: list[Tensor]) -> None:
    value[0][1] = 7.0


def set_slot(value: Slotted) -> None:
    value.late = 3


SEVEN = torch.tensor([0.0, 7.0])


@pytest.mark.parametrize(
    ("value", "write", "changes"),
    [
        ({"inner": {"mean": 1}}, add_to_dict, {"0.held['inner']": "dict of 1: ['mean', 2]"}),
        ([[1], None], add_to_list, {"0.held[0]": "list of 2: [1, 2]"}),
        (State(), count_in_object, {"0.held.seen": 1}),
        ([State()], lambda value: count_in_object(value[0]), {"0.held[0].seen": 1}),
        (types.SimpleNamespace(state=State()), count_in_namespace, {"0.held.state.seen": 1}),
        (Slotted(), count_in_object, {"0.held.seen": 1}),
        (Slotted(), set_slot, {"0.held.late": 3}),
        (np.zeros(2, np.float32), write_array, {"0.held": SEVEN}),
        (np.zeros(2, ">f4"), write_array, {"0.held": digest(np.array([0, 7], ">f4"))}),
        ([torch.zeros(2)], write_tensor, {"0.held[0]": SEVEN}),
        ({State: 1}, dict.clear, {"0.held": "dict of 0: []", "0.held[#0]": "deleted"}),
    ],
)
def test_what_is_written_inside_what_a_module_holds_is_told_by_path(
    value: Any, write: Callable[[Any], None], changes: dict[str, Any]
) -> None:
    effects = SideEffects(holding(value))
    assert effects.attributes() == {}

    write(value)

    told = effects.attributes()
    assert told.keys() == changes.keys()
    for name, change in changes.items():
        if isinstance(change, Tensor):
            assert torch.equal(told[name], change)
        else:
            assert told[name] == change


def test_an_attribute_that_is_deleted_is_told() -> None:
    model = nn.Sequential(Counting())
    effects = SideEffects(model)
    del model[0].calls

    assert effects.attributes() == {"0.calls": "deleted"}


def test_training_mode_and_hooks_that_are_left_behind_are_told() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    effects = SideEffects(model)
    model[0].eval()
    handle = model[0].register_forward_hook(lambda *_: None)

    assert effects.attributes() == {"0.training": False, "0._forward_hooks": "hooks: 1"}

    handle.remove()
    assert effects.attributes() == {"0.training": False}


def test_a_parameter_that_is_left_frozen_is_told() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    effects = SideEffects(model)
    model[0].bias.requires_grad_(False)

    assert effects.attributes() == {"0.bias.requires_grad": False}


@pytest.mark.parametrize("value", [[random.Random(1)], {"a": [State()]}], ids=["list", "object"])
def test_generators_inside_what_a_module_holds_are_digested(value: Any) -> None:
    effects = SideEffects(holding(value))
    before = effects.generators()
    (path,) = before

    (value[0] if isinstance(value, list) else value["a"][0].order).random()

    assert effects.generators().keys() == {path}
    assert effects.generators() != before


def test_a_buffer_and_a_parameter_in_whose_place_another_is() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    effects = SideEffects(model)
    model[1].running_mean.add_(1)
    assert effects.rebound() == {}

    model[1].running_mean = model[1].running_mean.clone()
    model[0].weight = nn.Parameter(torch.zeros(2, 2))

    assert effects.rebound() == {"0.weight": True, "1.running_mean": True}


@pytest.mark.parametrize("name", ["generator", "order"])
def test_generators_among_the_attributes_are_digested(name: str) -> None:
    model = nn.Sequential(Counting())
    effects = SideEffects(model)
    before = effects.generators()
    assert before.keys() == {"generator 0.generator", "generator 0.order"}
    assert effects.generators() == before

    if name == "generator":
        torch.rand(1, generator=model[0].generator)
    else:
        model[0].order.random()

    changed = {key for key, state in effects.generators().items() if state != before[key]}
    assert changed == {f"generator 0.{name}"}
