"""Tensors nested in arguments and outputs pass the boundary."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from wcn_ckpt.checkpointing.errors import ReplayGuardError
from wcn_ckpt.checkpointing.structure import StructuredCall
from wcn_ckpt.nn.modules import GradientCheckpointingMixin


@dataclasses.dataclass
class Batch:
    x: Tensor
    scale: float
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Tensor
    n: int = 1


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


class Structured(GradientCheckpointingMixin, nn.Module):
    """Applies a linear layer and tanh to the tensor that `pick` finds in its arguments."""

    def __init__(self, pick: Any, wrap: Any = lambda x: x) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint=True)
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.pick, self.wrap = pick, wrap
        self.calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._gradient_checkpointed_call(self._forward, *args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.wrap(self.linear(self.pick(*args, **kwargs)).tanh())


CALLS: dict[str, tuple[Any, Any]] = {
    "keyword": (lambda x: ((), {"x": x}), lambda x: x),
    "list": (lambda x: (([x, 1],), {}), lambda v: v[0]),
    "dict in keyword": (lambda x: ((), {"d": {"a": [x]}}), lambda d: d["a"][0]),
    "named tuple": (lambda x: ((Pair(x, x),), {}), lambda p: p.a + p.b),
    "ordered dict": (lambda x: ((collections.OrderedDict(a=x),), {}), lambda d: d["a"]),
    "dataclass": (lambda x: ((Batch(x, 2.0),), {}), lambda b: b.x * b.scale),
    "nested dataclass": (
        lambda x: ((Batch(x, 1.0, {"f": Frozen(x)}),), {}),
        lambda b: b.extra["f"].x,
    ),
    "frozen dataclass": (lambda x: ((Frozen(x),), {}), lambda f: f.x),
    "slotted dataclass": (lambda x: ((Slotted(x, 3),), {}), lambda s: s.x * s.n),
    "tensor and scalar": (lambda x: ((x, 3), {"k": None}), lambda x, n, k: x * n),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_flow_through_nested_inputs(name: str) -> None:
    make, pick = CALLS[name]
    grads = []
    for enable in (False, True):
        block = Structured(pick)
        block.use_checkpoint = enable
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        args, kwargs = make(x)
        block(*args, **kwargs).sum().backward()
        assert block.calls == 1 + enable
        grads.append([x.grad, *(p.grad for p in block.parameters())])

    for expected, got in zip(*grads, strict=True):
        assert torch.equal(expected, got)


def first_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    inner = (
        value.values()
        if isinstance(value, dict)
        else vars(value).values()
        if dataclasses.is_dataclass(value)
        else value
    )
    return first_tensor(next(iter(inner)))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: [y, 3],
        lambda y: {"y": y},
        lambda y: Pair(y, y * 2),
        lambda y: Batch(y, 1.0),
        lambda y: Frozen(y),
    ],
)
def test_outputs_keep_their_type_and_gradient(wrap: Any) -> None:
    block = Structured(lambda x: x, wrap)
    out = block(torch.randn(3, 4))

    assert type(out) is type(wrap(torch.zeros(1)))
    tensor = first_tensor(out)
    assert tensor.requires_grad
    tensor.sum().backward()
    assert block.linear.weight.grad is not None


def test_a_container_that_the_block_changes_is_seen_as_it_was_at_entry() -> None:
    def grow(cache: list[Tensor], x: Tensor) -> Tensor:
        cache.append(x.detach() * 0.5)
        return x + torch.stack(cache).sum(0)

    grads = []
    for enable in (False, True):
        block = Structured(grow)
        block.use_checkpoint = enable
        cache = [torch.ones(3, 4)]
        x = torch.ones(3, 4, requires_grad=True)
        block(cache, x).sum().backward()
        assert len(cache) == 2
        grads.append(x.grad)

    assert torch.equal(*grads)


@pytest.mark.parametrize("where", ["keyword", "dict", "dataclass"])
def test_a_nested_input_changed_before_backward_is_refused_as_autograd_does(where: str) -> None:
    block = Structured(
        {"keyword": lambda x: x, "dict": lambda d: d["x"], "dataclass": lambda b: b.x}[where]
    )
    x = torch.ones(3, 4)
    out = {
        "keyword": lambda: block(x=x),
        "dict": lambda: block({"x": x}),
        "dataclass": lambda: block(Batch(x, 1.0)),
    }[where]()
    x.mul_(5)

    with pytest.raises(
        ReplayGuardError,
        match=r"a tensor of shape \(3, 4\) in .*argument .* was changed in place between",
    ):
        out.sum().backward()


def test_an_argument_without_tensors_is_allowed() -> None:
    block = Structured(lambda n: torch.ones(3, 4) * n)
    block(2).sum().backward()
    assert block.calls == 2


structures = st.recursive(
    st.one_of(st.integers(), st.none(), st.text(max_size=3), st.builds(lambda: torch.randn(2))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(
            Batch,
            st.builds(lambda: torch.randn(1)),
            st.just(1.0),
            st.dictionaries(st.text(max_size=2), inner, max_size=2),
        ),
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return a is b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return same(vars(a), vars(b))
    return bool(a == b)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(structures)
def test_rebuilding_around_the_same_tensors_gives_an_equal_structure(value: Any) -> None:
    call = StructuredCall((value,), {"key": value})
    (positional,), keywords = call.rebuild(call.saved)
    assert same(positional, value)
    assert same(keywords, {"key": value})
