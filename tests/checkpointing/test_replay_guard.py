"""What moved between forward and replay: ordinary autograd's outcome, or an error naming it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.checkpointing.stateful import Codebook
from tests.checkpointing.steps import Block
from wcn_ckpt import (
    GradientCheckpointingMixin,
    ReplayError,
    ReplayGuardError,
    configure_gradient_checkpointing,
    replay_options,
)
from wcn_ckpt.geometry import Geometry, Points, Voxels


class Scaled(nn.Module):
    """Multiplies by a buffer that nothing writes."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def make_block(enable: bool) -> Block:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Linear(4, 4), nn.Tanh(), Scaled(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)
    )
    block = Block(nn.Sequential(layers, Codebook4(), nn.Tanh(), nn.Linear(4, 4)))
    configure_gradient_checkpointing(block, enable)
    return block


class Codebook4(Codebook):
    """A codebook of four channels."""

    def __init__(self) -> None:
        super().__init__()
        self.book = torch.linspace(-1.0, 1.0, 4)


Grads = dict[str, Tensor | None]


def outcome(enable: bool, change: Callable[[Block], Any], warm: bool) -> Grads | RuntimeError:
    """Gradients of a forward whose ground `change` moves before backward, or the error."""
    block = make_block(enable)
    if warm:
        for _ in range(2):
            block(torch.ones(3, 4).requires_grad_()).sum().backward()
        block.zero_grad()
    parameters = dict(block.named_parameters())
    torch.manual_seed(1)
    x = torch.randn(3, 4, requires_grad=True)
    loss = block(x).square().sum()
    change(block)
    try:
        loss.backward()
    except RuntimeError as error:
        return error
    return {"x": x.grad} | {name: p.grad for name, p in parameters.items()}


def same(a: Grads, b: Grads) -> bool:
    def equal(name: str) -> bool:
        p, q = a[name], b[name]
        return p is q if p is None or q is None else torch.equal(p, q)

    return a.keys() == b.keys() and all(map(equal, a))


def layer(block: Block, path: str) -> Any:
    return block.get_submodule(path)


def set_data(tensor: Tensor) -> None:
    tensor.data = tensor.data * 3


def swap(block: Block, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    layer(block, parent)._modules[name] = new


def sgd_step(block: Block) -> None:
    for parameter in block.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(block.parameters(), lr=0.1).step()
    block.zero_grad()


@torch.no_grad()
def scale_by_3(tensor: Tensor) -> None:
    tensor.mul_(3)


FIRST = "body.0.0"

REFUSED: dict[str, tuple[Callable[[Block], Any], str]] = {
    "weight in place": (lambda b: scale_by_3(layer(b, FIRST).weight), r"body\.0\.0\.weight"),
    "bias in place": (lambda b: scale_by_3(layer(b, FIRST).bias), r"body\.0\.0\.bias"),
    "last bias in place": (lambda b: scale_by_3(layer(b, "body.3").bias), r"body\.3\.bias"),
    "norm weight in place": (lambda b: scale_by_3(layer(b, "body.0.4").weight), "body.0.4.weight"),
    "weight replaced": (
        lambda b: setattr(layer(b, FIRST), "weight", nn.Parameter(torch.ones(4, 4))),
        r"body\.0\.0\.weight",
    ),
    "bias removed": (lambda b: setattr(layer(b, FIRST), "bias", None), r"body\.0\.0|parameter"),
    "weight, data": (lambda b: set_data(layer(b, FIRST).weight), r"body\.0\.0\.weight"),
    "bias, data": (lambda b: set_data(layer(b, FIRST).bias), r"body\.0\.0\.bias"),
    "buffer in place": (lambda b: scale_by_3(layer(b, "body.0.2").scale), r"body\.0\.2\.scale"),
    "buffer replaced": (
        lambda b: setattr(layer(b, "body.0.2"), "scale", torch.ones(4)),
        r"body\.0\.2\.scale",
    ),
    "buffer, data": (lambda b: set_data(layer(b, "body.0.2").scale), r"body\.0\.2\.scale"),
    "buffer removed": (lambda b: setattr(layer(b, "body.0.2"), "scale", None), "scale"),
    "module swapped": (lambda b: swap(b, FIRST, nn.Linear(4, 4)), r"body\.0\.0"),
    "module without parameters swapped": (lambda b: swap(b, "body.0.1", nn.ReLU()), r"body\.0\.1"),
    "module added": (lambda b: layer(b, "body").append(nn.Linear(4, 4)), r"body\.4"),
    "module removed": (lambda b: layer(b, "body").pop(3), r"Block"),
    "optimizer step": (sgd_step, r"weight|bias"),
    "load_state_dict": (
        lambda b: b.load_state_dict({k: v * 5 for k, v in b.state_dict().items()}),
        r"weight|bias|scale",
    ),
    "double": (lambda b: b.double(), r"weight|bias|scale"),
}


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_moved_ground_is_refused_by_name(name: str, warm: bool) -> None:
    change, message = REFUSED[name]
    error = outcome(True, change, warm)

    assert isinstance(error, ReplayGuardError), error
    with pytest.raises(ReplayError, match=message):
        raise error


def test_a_norm_whose_frozen_statistics_are_refreshed_is_refused() -> None:
    block = make_block(True)
    norm = layer(block, "body.0.4").eval()
    loss = block(torch.ones(3, 4)).sum()
    norm.running_var.mul_(9)

    with pytest.raises(ReplayGuardError, match=r"body\.0\.4\.running_var"):
        loss.backward()


def freeze(block: Block) -> None:
    for parameter in layer(block, "body.3").parameters():
        parameter.requires_grad_(False)


AS_PLAIN: dict[str, Callable[[Block], Any]] = {
    "nothing": lambda b: None,
    "parameters frozen": freeze,
    "weight frozen": lambda b: layer(b, FIRST).weight.requires_grad_(False),
    "eval": lambda b: b.eval(),
    "dropout in eval": lambda b: layer(b, "body.0.5").eval(),
    "norm in eval": lambda b: layer(b, "body.0.4").eval(),
    "gradient checkpointing disabled": lambda b: configure_gradient_checkpointing(b, False),
    "buffer written with its own value": lambda b: layer(b, "body.0.2").scale.data.mul_(1),
    "state of the block written": lambda b: layer(b, "body.1").book.zero_(),
    "parameter added and removed": lambda b: (
        b.register_parameter("p", nn.Parameter(torch.ones(1))),
        delattr(b, "p"),
    ),
    "gradients set": lambda b: [setattr(p, "grad", None) for p in b.parameters()],
    "hook registered": lambda b: layer(b, FIRST).register_forward_hook(lambda *_: None),
    "another forward": lambda b: b(torch.ones(3, 4)),
    "an evaluation": lambda b: (b.eval(), torch.no_grad()(b)(torch.ones(3, 4)), b.train()),
    "state_dict": lambda b: b.state_dict(),
    "same state loaded": lambda b: b.load_state_dict(b.state_dict()),
}

LOADED = "same state loaded"


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", [name for name in AS_PLAIN if name != LOADED])
def test_ground_that_holds_is_replayed_as_plain(name: str, warm: bool) -> None:
    expected, got = outcome(False, AS_PLAIN[name], warm), outcome(True, AS_PLAIN[name], warm)

    assert isinstance(expected, dict)
    assert isinstance(got, dict), got
    assert same(expected, got)


def test_loading_the_same_state_is_refused_as_autograd_does() -> None:
    assert isinstance(outcome(False, AS_PLAIN[LOADED], True), RuntimeError)
    assert isinstance(outcome(True, AS_PLAIN[LOADED], True), ReplayGuardError)


def test_the_training_flags_are_left_as_they_were_set() -> None:
    block = make_block(True)
    loss = block(torch.ones(3, 4)).sum()
    block.eval()
    loss.backward()

    assert not any(module.training for module in block.modules())


def test_unfreezing_between_forward_and_backward_is_as_plain() -> None:
    grads = []
    for enable in (False, True):
        block = make_block(enable)
        weight = layer(block, "body.3").weight.requires_grad_(False)
        torch.manual_seed(1)
        x = torch.randn(3, 4, requires_grad=True)
        loss = block(x).sum()
        weight.requires_grad_(True)
        loss.backward()
        grads.append(x.grad)
        assert weight.grad is None

    assert torch.equal(*grads)


def test_a_guard_switched_off_refuses_nothing() -> None:
    block = make_block(True)
    replay_options(block, guard=False)
    loss = block(torch.ones(3, 4)).sum()
    scale_by_3(layer(block, FIRST).weight)
    scale_by_3(layer(block, "body.0.2").scale)

    loss.backward()


def test_functional_call_around_a_boundary_is_refused_or_right() -> None:
    """Torch's own checkpoint replays with the module's parameters, silently."""
    results = []
    for enable in (False, True):
        block = make_block(enable)
        block.eval()
        block.training = True
        values = {n: (p.detach() * 3).requires_grad_() for n, p in block.named_parameters()}
        x = torch.ones(3, 4, requires_grad=True)
        loss = functional_call(block, values, (x,)).sum()
        try:
            loss.backward()
        except ReplayGuardError as error:
            assert enable and ("weight" in str(error) or "bias" in str(error))
            return
        results.append([x.grad, *(v.grad for v in values.values())])

    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@dataclasses.dataclass
class Pack:
    x: Tensor
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


class Taking(GradientCheckpointingMixin, nn.Module):
    """Multiplies its weight with the tensor that `pick` finds in the arguments."""

    def __init__(self, pick: Callable[..., Tensor]) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint=True)
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.pick = pick

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._gradient_checkpointed_call(self._forward, *args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return (self.pick(*args, **kwargs).float() * self.weight).exp()


def points(x: Tensor) -> Points:
    return Points(x, x.clone(), offsets=[0, x.shape[0]])


Make = Callable[[Tensor], tuple[tuple[Any, ...], dict[str, Any]]]
PLACES: dict[str, tuple[Make, Callable[..., Tensor]]] = {
    "positional": (lambda x: ((x,), {}), lambda x: x),
    "keyword": (lambda x: ((), {"x": x}), lambda x: x),
    "dict": (lambda x: (({"x": x},), {}), lambda d: d["x"]),
    "list": (lambda x: (([1, x],), {}), lambda v: v[1]),
    "dataclass": (lambda x: ((Pack(x),), {}), lambda p: p.x),
    "dict in a dataclass": (lambda x: ((Pack(x, {"y": [x]}),), {}), lambda p: p.more["y"][0]),
    "dict in a keyword": (lambda x: ((), {"d": {"a": (x, 2)}}), lambda d: d["a"][0]),
    "geometry features": (lambda x: ((points(x),), {}), lambda p: p.feature_tensor),
    "geometry coordinates": (lambda x: ((points(x),), {}), lambda p: p.coordinate_tensor),
    "geometry in a list": (lambda x: (([points(x)],), {}), lambda v: v[0].feature_tensor),
    "voxels": (
        lambda x: ((Voxels(x.int() * 0 + torch.arange(4).int()[:, None], x, offsets=[0, 4]),), {}),
        lambda v: v.feature_tensor,
    ),
}


# A positional tensor is handed to torch as it is, which sees a change in place, not `.data =`.
NESTED = [place for place in PLACES if place != "positional"]


def tensor_of(block: Taking, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return block.pick(*args, **kwargs)


@pytest.mark.parametrize("retained", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_an_input_changed_in_place_is_refused(place: str, retained: bool) -> None:
    make, pick = PLACES[place]
    block = Taking(pick)
    args, kwargs = make(torch.linspace(-1, 1, 12).reshape(4, 3))
    out = block(*args, **kwargs).sum()
    if retained:
        out.backward(retain_graph=True)
    tensor_of(block, args, kwargs).mul_(2)

    with pytest.raises(RuntimeError, match="modified by an inplace|changed in place") as caught:
        out.backward()
    assert place == "positional" or isinstance(caught.value, ReplayGuardError)


def replace(value: Any, new: Tensor) -> None:
    """Put another tensor in the place of the one that is read."""
    if isinstance(value, list):
        if isinstance(value[-1], Geometry):
            value[-1] = points(new)
        else:
            value[-1] = new
    elif isinstance(value, dict):
        value.update({key: new for key in value})
    elif isinstance(value, Pack):
        value.x = new
        value.more.update(y=[new])
    elif isinstance(value, Geometry):
        vars(value).update(vars(points(new)))


@pytest.mark.parametrize("place", [p for p in PLACES if p not in ("positional", "voxels")])
def test_an_input_replaced_in_its_container_gives_the_gradient_of_the_forward(place: str) -> None:
    make, pick = PLACES[place]
    grads = []
    for enable in (False, True):
        block = Taking(pick)
        block.use_checkpoint = enable
        args, kwargs = make(torch.linspace(-1, 1, 12).reshape(4, 3))
        out = block(*args, **kwargs).sum()
        replace(args[0] if args else kwargs.get("d", kwargs), torch.full((4, 3), 5.0))
        out.backward()
        grads.append(block.weight.grad)

    assert torch.equal(*grads)


@pytest.mark.parametrize("place", NESTED)
def test_an_input_given_other_data_has_the_outcome_of_plain(place: str) -> None:
    make, pick = PLACES[place]
    grads = []
    for enable in (False, True):
        block = Taking(pick)
        block.use_checkpoint = enable
        args, kwargs = make(torch.linspace(-1, 1, 12).reshape(4, 3))
        out = block(*args, **kwargs).sum()
        tensor = tensor_of(block, args, kwargs)
        tensor.data = torch.full_like(tensor, 5)
        try:
            out.backward()
        except ReplayGuardError:
            assert enable
            return
        grads.append(block.weight.grad)

    assert torch.equal(*grads)
