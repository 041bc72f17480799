"""Tensors inside whatever a model takes or returns.

Containers that torch's pytree knows (with wcn_ckpt's geometries and Transformers' outputs) are
walked as it says; dataclasses and other plain objects by their attributes, ``__slots__`` included;
generators by what they yield.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_DEEPEST = 12
_CLOSED = (
    *(Tensor, nn.Module, type, enum.Enum, types.ModuleType, types.FunctionType, types.MethodType),
    *(types.BuiltinFunctionType, str, bytes, bytearray, int, float, complex, type(None)),
)
"""What is never looked into."""


class Leaf(NamedTuple):
    """Something in a structure that is no container."""

    path: str
    """How to reach it, such as ``['mask']`` or ``[0].features``; empty for the value itself."""
    value: Any
    """It."""


def leaves(value: Any) -> list[Leaf]:
    """List the leaves of a structure: tensors, and everything that holds no tensor.

    Args:
        value: The structure. A generator in it is used up.

    Returns:
        The leaves in order; an object that is reached twice appears once.
    """
    return list(_leaves(value, "", {}, 0))


def tensors(value: Any) -> list[Tensor]:
    """List the tensors in a structure, in order, each once."""
    return [leaf.value for leaf in leaves(value) if isinstance(leaf.value, Tensor)]


def dense(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in an ordinary one, whatever its layout.

    Args:
        tensor: Strided, sparse, blocked for oneDNN, or nested.

    Returns:
        The tensor itself if it is strided; of a nested one the values, one after the other.
    """
    if tensor.is_nested:
        if tensor.layout is torch.jagged:
            return tensor.values()
        return torch.cat([part.reshape(-1) for part in tensor.unbind()])
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def with_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Copy a structure with every tensor replaced.

    Args:
        value: The structure.
        function: Tensor -> the tensor to put in its place; called once for each tensor, so that
            one that appears twice still does.

    Returns:
        The copy; parts that hold no tensor are shared with ``value``.
    """
    return _replaced(value, function, {}, 0)


def attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object that may hold tensors; None where none are looked into."""
    if isinstance(value, _CLOSED) or type(value).__module__ in ("builtins", "torch", "random"):
        return None
    names = list(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    if dataclasses.is_dataclass(value):
        names += [field.name for field in dataclasses.fields(value)]
    found = {name: getattr(value, name) for name in dict.fromkeys(names) if hasattr(value, name)}
    return {name: item for name, item in found.items() if name not in ("__dict__", "__weakref__")}


def _leaves(value: Any, path: str, seen: dict[int, Any], depth: int) -> Iterator[Leaf]:
    if isinstance(value, types.GeneratorType):
        value = list(value)
    if id(value) in seen and (isinstance(value, Tensor) or not isinstance(value, _CLOSED)):
        return
    # It is kept: no other object may take its address.
    seen[id(value)] = value
    parts = _parts(value) if depth < _DEEPEST else None
    if not parts:
        yield Leaf(path, value)
        return
    found = [leaf for name, item in parts for leaf in _leaves(item, path + name, seen, depth + 1)]
    if _is_container(value) or any(isinstance(leaf.value, Tensor) for leaf in found):
        yield from found
    else:
        yield Leaf(path, value)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, Tensor):
        return None
    if _is_container(value):
        children, _ = _one_level(value)
        keys = list(value) if isinstance(value, Mapping) else range(len(children))
        return [(f"[{key!r}]", item) for key, item in zip(keys, children, strict=False)]
    held = attributes(value)
    return None if held is None else [(f".{name}", item) for name, item in held.items()]


def _is_container(value: Any) -> bool:
    return not pytree.tree_is_leaf(value)


def _one_level(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    entered = False

    def inside(item: Any) -> bool:
        nonlocal entered
        inner, entered = entered, True
        return inner

    return pytree.tree_flatten(value, is_leaf=inside)


def _replaced(
    value: Any, function: Callable[[Tensor], Tensor], done: dict[int, Any], depth: int
) -> Any:
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Tensor):
        done[id(value)] = function(value)
    elif _is_container(value) and depth < _DEEPEST:
        flat, spec = _one_level(value)
        copies = [_replaced(item, function, done, depth + 1) for item in flat]
        done[id(value)] = pytree.tree_unflatten(copies, spec)
    elif depth < _DEEPEST and (held := attributes(value)) and tensors(value):
        done[id(value)] = fresh = copy.copy(value)
        for name, item in held.items():
            object.__setattr__(fresh, name, _replaced(item, function, done, depth + 1))
    else:
        return value
    return done[id(value)]
