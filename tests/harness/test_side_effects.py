from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from harness.side_effects import SideEffects, modes, reset_modes


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


def test_modes_that_are_left_behind_are_seen_and_put_back() -> None:
    clean = modes()
    torch.autocast_increment_nesting()
    torch.autocast_increment_nesting()
    torch.set_autocast_enabled("cpu", True)
    torch.set_grad_enabled(False)
    try:
        left = modes()
    finally:
        reset_modes()

    assert left["autocast nesting"] == clean["autocast nesting"] + 2
    assert left["autocast cpu"] and not left["grad mode"]
    assert modes() == clean
