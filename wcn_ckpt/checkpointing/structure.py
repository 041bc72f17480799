"""The arguments of a boundary call, taken apart into tensors and put together again.

Torch's checkpoint saves, version-checks and finds devices only for tensors that it gets as
positional arguments. So every tensor in a nested argument is handed to it as one, and a replay
gets containers rebuilt as they were at entry, whatever the block did to the caller's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

Rebuild = Callable[[Sequence[Tensor]], Any]


def take_apart(value: Any) -> tuple[list[Tensor], Rebuild]:
    """Find the tensors in a structure.

    Containers known to torch's pytree (list, tuple, dict, named tuples, registered types such as
    the geometry classes) and dataclasses are looked into; anything else passes by reference.

    Args:
        value: the structure.

    Returns:
        Every tensor found, in a fixed order, and a function that builds the same structure anew
        around a sequence of as many tensors. The function keeps no container and no tensor.
    """
    found: list[Tensor] = []
    return found, _take_apart(value, found)


def _take_apart(value: Any, found: list[Tensor]) -> Rebuild:
    leaves, spec = pytree.tree_flatten(value)
    rebuild_leaves = [_take_leaf(leaf, found) for leaf in leaves]

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        return pytree.tree_unflatten([leaf(tensors) for leaf in rebuild_leaves], spec)

    return rebuild


def _take_leaf(leaf: Any, found: list[Tensor]) -> Rebuild:
    if isinstance(leaf, Tensor):
        position = len(found)
        found.append(leaf)
        return lambda tensors: tensors[position]
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        return _take_dataclass(leaf, found)
    return lambda tensors: leaf


def _take_dataclass(instance: Any, found: list[Tensor]) -> Rebuild:
    names = {field.name for field in dataclasses.fields(instance)}
    names |= getattr(instance, "__dict__", {}).keys()
    attributes = {name: getattr(instance, name) for name in names if hasattr(instance, name)}
    rebuild_attributes = _take_apart(attributes, found)
    cls = type(instance)

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        rebuilt = object.__new__(cls)
        for name, value in rebuild_attributes(tensors).items():
            object.__setattr__(rebuilt, name, value)
        return rebuilt

    return rebuild
