"""Values as they were at one instant: copies that later writes do not reach."""

from __future__ import annotations

import dataclasses
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from harness.equivalence import Difference, bitwise_equal, describe_difference
from harness.findings import Scalar

_DEEPEST = 4
_MOST_LEAVES = 512
_OPAQUE = (type, ModuleType, nn.Module, torch.Generator)
_OPAQUE_PACKAGES = ("torch", "wcn_ckpt.checkpointing", "functools", "logging", "numpy", "builtins")


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor as it was."""

    value: Tensor
    """Detached copy on the CPU."""
    requires_grad: bool
    """Whether gradients flowed through it."""
    tensor: weakref.ref[Tensor]
    """The tensor itself, while it lives."""
    version: int
    """How often it had been written in place."""

    def is_same_object(self, other: Held) -> bool:
        """Tell whether both are the same tensor at two instants; True where one is gone."""
        first, second = self.tensor(), other.tensor()
        return first is None or second is None or first is second


Leaf = Held | Scalar
"""A tensor, number or text at one instant."""
Leaves = dict[str, Leaf]
"""Path inside a structure -> the leaf there, in order."""


@contextmanager
def unseen() -> Iterator[None]:
    """Compute inside without a trace: no graph, no dispatch mode and no function mode notices."""
    with torch.no_grad(), _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def shared_copies() -> Iterator[None]:
    """Let :func:`hold` give out, inside, one copy of a tensor for as long as its bits stay.

    A model is copied at the start and end of each of its calls, and hardly any of it changes.
    """
    global _copies
    outer, _copies = _copies, WeakTensorKeyDictionary()
    try:
        yield
    finally:
        _copies = outer


_copies: MutableMapping[Tensor, Tensor] | None = None
"""The newest copy of each tensor; of use to the autograd engine's threads too."""


def hold(tensor: Tensor) -> Leaf:
    """Copy a tensor; one that cannot be copied bit by bit is described in words.

    Args:
        tensor: Any tensor. Of a distributed one the part on this rank is copied.
    """
    with unseen():
        return hold_unseen(tensor)


def hold_unseen(tensor: Tensor) -> Leaf:
    """Do as :func:`hold`; for many tensors inside one :func:`unseen`."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if local.layout != torch.strided or local.is_meta or local.is_quantized:
        return f"{local.layout} {local.dtype} tensor of shape {tuple(local.shape)}"
    version = 0 if tensor.is_inference() else tensor._version
    copy = _copy_of(tensor, local.detach())
    return Held(copy, tensor.requires_grad, weakref.ref(tensor), version)


def _copy_of(tensor: Tensor, local: Tensor) -> Tensor:
    copy = None if _copies is None else _copies.get(tensor)
    # The version of a tensor does not tell: a write through .data leaves it as it is.
    if copy is None or not bitwise_equal(copy, local.cpu()):
        copy = local.to("cpu", copy=True)
        if _copies is not None:
            _copies[tensor] = copy
    return copy


def leaves_of(value: Any, name: str = "") -> Leaves:
    """Flatten a value into tensors, numbers and texts.

    Containers are walked and their lengths noted; dataclasses, registered pytree nodes and plain
    objects are walked by their fields. Modules, functions and generators are left out.

    Args:
        value: Anything.
        name: Path of the value itself.
    """
    found: Leaves = {}
    _collect(value, name, found, _DEEPEST, set())
    return found


def _collect(value: Any, name: str, found: Leaves, depth: int, seen: set[int]) -> None:
    if len(found) >= _MOST_LEAVES:
        return
    if isinstance(value, Tensor):
        found[name] = hold(value)
    elif value is None or isinstance(value, (bool, int, float, str)):
        found[name] = value
    elif isinstance(value, (torch.dtype, torch.device, complex, bytes)):
        found[name] = repr(value)
    elif not callable(value) and not isinstance(value, _OPAQUE) and id(value) not in seen and depth:
        seen = {*seen, id(value)}
        for part, item in _parts(value, name, found):
            _collect(item, part, found, depth - 1, seen)


def _parts(value: Any, name: str, found: Leaves) -> Iterator[tuple[str, Any]]:
    """Yield what a structure holds, with paths, and note the length of a container."""
    if isinstance(value, Mapping):
        found[f"len({name})"] = len(value)
        yield from ((f"{name}[{key!r}]", item) for key, item in list(value.items()))
    elif isinstance(value, Set):
        found[f"len({name})"] = len(value)
    elif isinstance(value, (list, tuple, deque)):
        found[f"len({name})"] = len(value)
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(list(value)))
    elif type(value).__module__ == "numpy" and hasattr(value, "__array__"):
        yield name, _tensor_of(value)
    elif type(value) in pytree.SUPPORTED_NODES:
        children, _ = pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
        yield from ((f"{name}[{index}]", item) for index, item in enumerate(children))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield f"{name}.{field.name}", getattr(value, field.name, None)
    elif not type(value).__module__.startswith(_OPAQUE_PACKAGES):
        yield from ((f"{name}.{key}", item) for key, item in list(vars_of(value).items()))


def vars_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself; empty where it has no dictionary."""
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return attributes


def _tensor_of(array: Any) -> Any:
    try:
        return torch.from_numpy(array.copy())
    except (TypeError, ValueError):
        return repr(array)


def same(first: Leaf, second: Leaf) -> bool:
    """Tell whether two leaves are equal bit by bit."""
    if isinstance(first, Held) and isinstance(second, Held):
        return first.value is second.value or bitwise_equal(first.value, second.value)
    return type(first) is type(second) and (first == second or first != first)


def difference(name: str, first: Leaf, second: Leaf) -> Difference:
    """Describe how two leaves differ; two equal ones have no index and no size."""
    if same(first, second):
        return Difference("", "", name, _text(first), _text(second))
    return describe_difference(_plain(first), _plain(second), name=name)


def first_difference(
    first: Leaves, second: Leaves, *, allowed: float = 0.0, tensors_only: bool = False
) -> Difference | None:
    """Describe the first leaf, in order, that differs between two structures.

    Args:
        first: Leaves of the first structure.
        second: Leaves of the second one.
        allowed: Largest absolute difference of two tensors that counts as none.
        tensors_only: Compare the tensors that are in both, and nothing else.

    Returns:
        The difference; None where there is none.
    """
    for name in {**first, **second}:
        if name in first and name in second:
            expected, got = first[name], second[name]
            if tensors_only and not (isinstance(expected, Held) and isinstance(got, Held)):
                continue
            if not same(expected, got):
                gap = difference(name, expected, got)
                if gap.max_abs is None or gap.max_abs > allowed:
                    return gap
        elif not tensors_only:
            texts = (
                _text(leaves[name]) if name in leaves else "missing" for leaves in (first, second)
            )
            expected_text, got_text = texts
            return Difference("", "", name, expected_text, got_text)
    return None


def _plain(leaf: Leaf) -> Tensor | Scalar:
    return leaf.value if isinstance(leaf, Held) else leaf


def _text(leaf: Leaf) -> Scalar:
    return describe_difference(_plain(leaf), None).expected
