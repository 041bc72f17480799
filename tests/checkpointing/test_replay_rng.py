"""Numbers drawn in a block are drawn again in its replay, and the streams go on as before."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from tests.checkpointing.stateful import Drawing, RandomLayers, with_tail
from tests.checkpointing.steps import (
    STYLES,
    Block,
    assert_checkpointing_changes_nothing,
    differences,
    observe,
    ordinary_and_checkpointed,
)
from wcn_ckpt import (
    GradientCheckpointingMixin,
    configure_gradient_checkpointing,
    is_replaying,
)
from wcn_ckpt.geometry import Points


def _coin() -> int:
    return int(torch.randint(0, 2, ()))


GLOBAL: dict[str, Callable[[Any], Any]] = {
    "random.random": lambda _: random.random(),
    "random.gauss": lambda _: 1 + random.gauss(0, 1),
    "random.shuffle": lambda _: random.sample(range(9), 3)[0],
    "random.getrandbits": lambda _: random.getrandbits(3),
    "numpy rand": lambda _: np.random.rand(),
    "numpy normal": lambda _: np.random.normal(),
    "numpy three normals": lambda _: np.random.standard_normal(3).sum(),
    "numpy permutation": lambda _: np.random.permutation(9)[0],
    "numpy randint": lambda _: np.random.randint(1, 9),
    "many draws": lambda _: (
        sum(random.random() for _ in range(1300)) / 1300 + np.random.rand(1300)[7]
    ),
    "torch rand": lambda _: torch.rand(()),
    "torch then numpy then python": lambda _: torch.rand(()) + np.random.randn() + random.random(),
    "every second call": lambda m: np.random.rand() if _coin() else 0.5,
    "reseeding": lambda _: (random.seed(3), random.random())[1],
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", GLOBAL)
def test_draws_from_global_generators(name: str, style: str) -> None:
    torch.manual_seed(0)

    assert_checkpointing_changes_nothing(
        Block(with_tail(Drawing(GLOBAL[name]))), style, torch.randn(9, 6), steps=4
    )


@pytest.mark.parametrize("style", STYLES)
def test_random_orders_scales_and_dropout_together(style: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        Block(with_tail(RandomLayers())), Block(nn.Sequential(RandomLayers(), nn.Linear(6, 6)))
    )

    assert_checkpointing_changes_nothing(model, style, torch.randn(9, 6), steps=3)


@pytest.mark.parametrize("style", STYLES)
def test_only_the_second_gaussian_of_a_pair_is_drawn_in_the_block(style: str) -> None:
    """Neither library moves its words for it; numpy keeps it where only `get_state` looks."""
    torch.manual_seed(0)
    ordinary, checkpointed = ordinary_and_checkpointed(
        Block(with_tail(Drawing(lambda _: 2 + np.random.normal() + random.gauss(0, 1))))
    )
    x = torch.randn(9, 6)
    seen = []
    for model in (ordinary, checkpointed):
        random.seed(0)
        np.random.seed(0)
        results = []
        for step in range(6):
            if step % 2 == 0:
                np.random.normal(), random.gauss(0, 1)
            model.zero_grad()
            inputs = x.clone().requires_grad_()
            results += [t.clone() for t in STYLES[style](model, inputs)]
            results += [] if inputs.grad is None else [inputs.grad]
            np.random.normal(), random.gauss(0, 1)
        results.append(torch.tensor([random.gauss(0, 1), np.random.normal()]))
        seen.append(results)

    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def drawing_arm(make: Callable[[], Any], draw: Callable[[Any], Any], enable: bool) -> Block:
    torch.manual_seed(0)
    block = Block(with_tail(Drawing(draw, generator=make())))
    configure_gradient_checkpointing(block, enable)
    return block


OWN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch.Generator": (
        lambda: torch.Generator().manual_seed(5),
        lambda g: torch.rand((), generator=g),
    ),
    "random.Random": (lambda: random.Random(5), lambda g: g.gauss(1, 1)),
    "numpy Generator": (lambda: np.random.default_rng(5), lambda g: g.normal()),
    "numpy Generator, MT19937": (
        lambda: np.random.Generator(np.random.MT19937(5)),
        lambda g: g.random(),
    ),
    "numpy RandomState": (lambda: np.random.RandomState(5), lambda g: g.normal()),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", OWN)
def test_a_generator_that_a_module_owns(name: str, style: str) -> None:
    make, draw = OWN[name]
    seen = []
    for enable in (False, True):
        block = drawing_arm(make, lambda module: draw(module.generator), enable)
        results = observe(block, style, torch.ones(9, 6), steps=3)
        generator = block.body.get_submodule("1").generator
        results["next draw"] = torch.as_tensor(draw(generator))
        seen.append(results)

    assert differences(*seen) == []


class Taking(GradientCheckpointingMixin, nn.Module):
    """Draws from a generator in its arguments."""

    def __init__(self, draw: Callable[[Any], Any], unpack: Callable[..., Any]) -> None:
        super().__init__()
        self._init_gradient_checkpointing()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 6)
        self.draw, self.unpack = draw, unpack

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self._gradient_checkpointed_call(self._forward, x, *args, **kwargs)

    def _forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = self.linear(x * float(self.draw(self.unpack(*args, **kwargs))))
        return out.sin()


PLACES: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    "positional": (lambda g: ((g,), {}), lambda g: g),
    "keyword": (lambda g: ((), {"generator": g}), lambda generator: generator),
    "in a list": (lambda g: (([g],), {}), lambda gs: gs[0]),
    "in a dict keyword": (lambda g: ((), {"d": {"g": g}}), lambda d: d["g"]),
}


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", OWN)
def test_a_generator_among_the_arguments(name: str, place: str, retain: bool) -> None:
    make, draw = OWN[name]
    pack, unpack = PLACES[place]
    seen = []
    for enable in (False, True):
        block = Taking(draw, unpack)
        configure_gradient_checkpointing(block, enable)
        generator = make()
        args, kwargs = pack(generator)
        x = torch.ones(3, 6, requires_grad=True)
        for _ in range(3):
            loss = block(x, *args, **kwargs).square().sum()
            if retain:
                loss.backward(retain_graph=True)
            loss.backward()
        seen.append([x.grad, block.linear.weight.grad, torch.as_tensor(draw(generator))])

    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_one_generator_that_two_boundaries_and_their_caller_share() -> None:
    seen = []
    for enable in (False, True):
        generator = torch.Generator().manual_seed(3)
        torch.manual_seed(0)
        layers = [
            Block(with_tail(Drawing(lambda m: torch.rand((), generator=m.g), g=generator)))
            for _ in range(2)
        ]
        model = nn.Sequential(*layers)
        configure_gradient_checkpointing(model, enable)
        x = torch.ones(3, 6, requires_grad=True)
        for _ in range(3):
            loss = model(x).sum() * torch.rand((), generator=generator)
            loss.backward()
        seen.append([x.grad, generator.get_state()])

    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_the_caller_may_reseed_between_forward_and_backward() -> None:
    """The replay draws what its forward drew, and hands the caller's own streams back."""
    seen = []
    for enable in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        block = Block(with_tail(RandomLayers()))
        configure_gradient_checkpointing(block, enable)
        x = torch.ones(3, 6, requires_grad=True)
        loss = block(x).sum()
        torch.manual_seed(9)
        random.seed(9)
        np.random.seed(9)
        loss.backward()
        drawn = [float(torch.rand(())), random.random(), float(np.random.rand())]
        seen.append([x.grad, torch.tensor(drawn)])

    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("bit_generator", [np.random.MT19937, np.random.PCG64, np.random.SFC64])
def test_another_bit_generator_behind_numpys_global_functions(bit_generator: Any) -> None:
    original = np.random.get_bit_generator()
    seen = []
    try:
        for enable in (False, True):
            np.random.set_bit_generator(bit_generator(5))
            torch.manual_seed(0)
            block = Block(with_tail(Drawing(lambda _: np.random.normal())))
            configure_gradient_checkpointing(block, enable)
            x = torch.ones(3, 6, requires_grad=True)
            for step in range(5):
                if step == 3:
                    np.random.set_bit_generator(bit_generator(6))
                block(x).sum().backward()
            seen.append([x.grad, torch.tensor(np.random.rand())])
    finally:
        np.random.set_bit_generator(original)

    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("preserve", [True, False])
def test_generators_are_left_alone_without_preserve_rng_state(preserve: bool) -> None:
    block = Block(with_tail(Drawing(lambda _: random.random() + np.random.rand())))
    block.gradient_checkpointing_enable({"preserve_rng_state": preserve})
    random.seed(0)
    np.random.seed(0)
    loss = block(torch.ones(3, 6)).sum()
    states = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    loss.backward()

    after = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    assert (after == states) is preserve


def test_an_exception_in_a_replay_gives_the_streams_back() -> None:
    class Failing(nn.Module):
        fails = False

        def forward(self, x: Tensor) -> Tensor:
            scale = random.random() + np.random.rand() + float(torch.rand(()))
            if self.fails:
                raise ArithmeticError("planted")
            return (x * scale).sin()

    block = Block(with_tail(Failing()))
    configure_gradient_checkpointing(block)
    loss = block(torch.ones(3, 6)).sum()
    block.body.get_submodule("1").fails = True
    states = copy.deepcopy((random.getstate(), torch.get_rng_state().tolist()))
    numpy_state = np.random.get_state()
    with pytest.raises(ArithmeticError):
        loss.backward()

    assert (random.getstate(), torch.get_rng_state().tolist()) == states
    assert numpy_state[2:] == np.random.get_state()[2:]
    assert (numpy_state[1] == np.random.get_state()[1]).all()


def test_numpy_is_optional() -> None:
    program = """
import sys
sys.modules["numpy"] = None
import random, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

class Block(GradientCheckpointingMixin, nn.Module):
    def __init__(self):
        super().__init__()
        self._init_gradient_checkpointing(True)
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self._gradient_checkpointed_call(self._forward, x)

    def _forward(self, x):
        self.scale = random.random()
        return self.linear(x * self.scale).sin()

block = Block()
for _ in range(3):
    loss = block(torch.ones(2, 3)).sum()
    scale = block.scale
    loss.backward()
    assert block.scale == scale
assert sys.modules["numpy"] is None
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("where", ["positional", "keyword"])
def test_dropout_on_cuda_where_the_only_tensors_are_in_a_geometry(where: str) -> None:
    """Torch looks for devices in its arguments, and sees none in an object that is opaque to it."""

    def drop(module: Taking, x: Points) -> Tensor:
        return nn.functional.dropout(module.linear(x.feature_tensor), 0.5)

    seen = []
    for enable in (False, True):
        torch.manual_seed(0)
        block = Taking(lambda _: 1.0, lambda: None).cuda()
        block._forward = functools.partial(drop, block)
        configure_gradient_checkpointing(block, enable)
        coordinates = torch.rand(64, 3, device="cuda")
        points = Points(coordinates, torch.ones(64, 6, device="cuda"), offsets=[0, 64])
        torch.cuda.manual_seed(7)
        out = block(points) if where == "positional" else block(x=points)
        out.square().sum().backward()
        seen.append([block.linear.weight.grad, torch.cuda.get_rng_state()])

    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


class _DrawingMoreInReplays(nn.Module):
    def __init__(self, more: Callable[[], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        if is_replaying():
            self.more()
        return self.linear(x).relu() * torch.rand(6)


def _fail() -> None:
    torch.rand(3)
    raise KeyError("replay")


@pytest.mark.parametrize("more", [lambda: torch.rand(3), _fail], ids=["draws", "draws and raises"])
@pytest.mark.parametrize("accelerator", [None, torch.device("cuda")], ids=["no device", "a device"])
def test_whatever_a_replay_draws_torch_generator_goes_on_from_the_forward(
    more: Callable[[], Any], accelerator: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without an accelerator the frame keeps torch's generator, with one torch's checkpoint does.
    monkeypatch.setattr("wcn_ckpt.checkpointing.call.current_accelerator", lambda: accelerator)
    block = Block(_DrawingMoreInReplays(more))
    configure_gradient_checkpointing(block)
    for _ in range(4):
        loss = block(torch.randn(9, 6, requires_grad=True)).sum()
        state = torch.get_rng_state()
        with contextlib.suppress(KeyError):
            loss.backward()
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("keywords", "preserved"),
    [
        ({}, True),
        ({"preserve_rng_state": True}, True),
        ({"early_stop": False}, True),
        ({"preserve_rng_state": False}, False),
    ],
)
def test_keywords_say_whether_dropout_is_replayed_alike(
    keywords: dict[str, bool], preserved: bool
) -> None:
    block = Block(nn.Sequential(nn.Dropout(0.5), nn.Tanh()))
    configure_gradient_checkpointing(block)
    block._gradient_checkpointing_func = functools.partial(torch_checkpoint, **keywords)
    x = torch.ones(100, 6, requires_grad=True)

    out = block(x)
    out.sum().backward()

    assert (torch.equal(x.grad != 0, out != 0)) == preserved


@pytest.mark.parametrize("style", STYLES)
def test_noise_that_is_saved_before_it_is_drawn(style: str) -> None:
    torch.manual_seed(0)
    model = Block(nn.Sequential(nn.Linear(6, 6), nn.RReLU()))

    assert_checkpointing_changes_nothing(model, style, torch.randn(9, 6))


def test_torchs_own_checkpoint_does_not_keep_noise_that_is_saved_before_it_is_drawn() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 6), nn.RReLU())
    x = torch.randn(9, 6)
    gradients = []
    for call in (body, functools.partial(torch_checkpoint, body, use_reentrant=False)):
        torch.manual_seed(7)
        body.zero_grad()
        call(x).sum().backward()
        gradients.append(body[0].weight.grad.clone())

    assert not torch.equal(*gradients)
