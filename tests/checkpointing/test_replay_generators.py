"""Generators that nobody hands to a block: in containers and objects, closed over, global."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.checkpointing.public import Calling, both, equal, grads
from wcn_ckpt import GradientCheckpointingMixin, make_checkpointable, preserve_replay_state
from wcn_ckpt.checkpointing.replay.generators import generators_in, names_in

GENERATOR = torch.Generator()
NUMBERS: Any = None
THIS_MODULE = sys.modules[__name__]


class Holder:
    in_class = torch.Generator()

    def __init__(self, generator: torch.Generator) -> None:
        self.inner = {"generator": generator}


def helper() -> Tensor:
    return torch.rand(3, generator=GENERATOR)


def in_a_closure(generator: torch.Generator) -> Callable[..., Tensor]:
    return lambda body, x: body(x) * torch.rand(3, generator=generator)


def as_a_default(given: torch.Generator) -> Callable[..., Tensor]:
    def function(body: nn.Module, x: Tensor, *, generator: torch.Generator = given) -> Tensor:
        out: Tensor = body(x) * torch.rand(3, generator=generator)
        return out

    return function


def in_a_partial(generator: torch.Generator) -> Callable[..., Tensor]:
    def function(holder: Holder, body: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = body(x) * torch.rand(3, generator=holder.inner["generator"])
        return out

    return functools.partial(function, Holder(generator))


def global_name(body: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = body(x) * helper()
    return out


def module_attribute(body: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = body(x) * torch.rand(3, generator=THIS_MODULE.GENERATOR)
    return out


def class_attribute(body: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = body(x) * torch.rand(3, generator=Holder.in_class)
    return out


def numpy_global(body: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = body(x) * float(NUMBERS.random())
    return out


PLACES: dict[str, Callable[[torch.Generator], Callable[..., Tensor]]] = {
    "closure": in_a_closure,
    "default": as_a_default,
    "partial": in_a_partial,
    "global": lambda _: global_name,
    "module attribute": lambda _: module_attribute,
    "class attribute": lambda _: class_attribute,
    "numpy global": lambda _: numpy_global,
}


def seeded() -> torch.Generator:
    global NUMBERS
    NUMBERS = np.random.default_rng(1)
    for generator in (GENERATOR, Holder.in_class):
        generator.manual_seed(2)
    return torch.Generator().manual_seed(3)


def states(generator: torch.Generator) -> list[Tensor]:
    others = [g.get_state() for g in (generator, GENERATOR, Holder.in_class)]
    return [*others, torch.tensor(NUMBERS.random())]


@pytest.mark.parametrize("place", PLACES)
def test_a_function_refers_to_a_generator(place: str) -> None:
    def run(enable: bool) -> list[Any]:
        generator = seeded()
        block = Calling(nn.Linear(3, 3), PLACES[place](generator), enable)
        for _ in range(3):
            block(torch.ones(2, 3)).sin().sum().backward()
        return [*grads(block), *states(generator)]

    assert equal(*both(run))


@pytest.mark.parametrize("place", ["closure", "default", "partial", "global", "numpy global"])
def test_a_function_that_is_no_method_refers_to_a_generator(place: str) -> None:
    class Direct(GradientCheckpointingMixin, nn.Module):
        def __init__(self, enable: bool) -> None:
            super().__init__()
            self._init_gradient_checkpointing(enable)
            self.linear = nn.Linear(3, 3)

    class OwnCalls(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.linear, self.function = nn.Linear(3, 3), function

        def forward(self, x: Tensor) -> Any:
            linear = self.linear
            return checkpoint(lambda x: function_of(self)(linear, x), x, use_reentrant=False)

    def function_of(module: OwnCalls) -> Any:
        return module.function

    def boundary(enable: bool) -> list[Any]:
        generator = seeded()
        block = Direct(enable)
        function = PLACES[place](generator)
        for _ in range(3):
            out = block._gradient_checkpointed_call(function, block.linear, torch.ones(2, 3))
            out.sin().sum().backward()
        return [*grads(block), *states(generator)]

    def preserved(enable: bool) -> list[Any]:
        generator = seeded()
        model = OwnCalls(PLACES[place](generator))
        if not enable:
            model.forward = lambda x: model.function(model.linear, x)  # type: ignore[method-assign]
        with preserve_replay_state(model):
            for _ in range(3):
                model(torch.ones(2, 3)).sin().sum().backward()
        return [*grads(model), *states(generator)]

    assert equal(*both(boundary))
    assert equal(*both(preserved))


class Drawing(nn.Module):
    generator_of_class = torch.Generator()

    def __init__(self, pick: Callable[[Any], torch.Generator], held: Any) -> None:
        super().__init__()
        self.linear, self.pick, self.held = nn.Linear(3, 3), pick, held

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * torch.rand(3, generator=self.pick(self))
        return out


ATTRIBUTES: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Generator], Any]]] = {
    "list": (lambda m: m.held[1], lambda g: [None, g]),
    "dictionary": (lambda m: m.held["g"][0], lambda g: {"g": (g,)}),
    "object": (lambda m: m.held.inner["generator"], Holder),
    "namespace": (lambda m: m.held.g, lambda g: types.SimpleNamespace(g=g)),
    "class": (lambda m: m.generator_of_class, lambda g: None),
}


@pytest.mark.parametrize("place", ATTRIBUTES)
def test_a_module_holds_a_generator_in_something(place: str) -> None:
    pick, hold = ATTRIBUTES[place]

    def run(enable: bool) -> list[Any]:
        Drawing.generator_of_class.manual_seed(2)
        generator = torch.Generator().manual_seed(3)
        model = nn.Sequential(Drawing(pick, hold(generator)))
        make_checkpointable(model, Drawing, use_checkpoint=enable)
        for _ in range(3):
            model(torch.ones(2, 3)).sin().sum().backward()
        return [*grads(model), generator.get_state(), Drawing.generator_of_class.get_state()]

    assert equal(*both(run))


def test_a_generator_in_an_object_that_is_passed() -> None:
    def run(enable: bool) -> list[Any]:
        generator = torch.Generator().manual_seed(3)
        block = Calling(
            nn.Linear(3, 3),
            lambda body, x, held: body(x) * torch.rand(3, generator=held.inner["generator"]),
            enable,
        )
        block(torch.ones(2, 3), held=Holder(generator)).sin().sum().backward()
        return [*grads(block), generator.get_state()]

    assert equal(*both(run))


def test_each_generator_is_found_once_and_modules_and_tensors_are_not_entered() -> None:
    generator, other = torch.Generator(), random.Random(1)
    holder = Holder(generator)
    holder.inner["self"] = holder  # type: ignore[assignment]
    module = nn.Linear(1, 1)
    module.generator = torch.Generator()

    assert generators_in([holder, [generator], {"a": other}, module]) == [generator, other]


def test_names_in_code_are_those_of_functions_inside_it_too_each_once() -> None:
    def outer(x: Tensor) -> list[Tensor]:
        return [y for y in map(lambda z: z + NUMBERS.first, (x, helper()))]

    assert names_in(outer.__code__) == ("map", "helper", "NUMBERS", "first")
