"""Names of the types in a structure, for people."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from harness.structures import attributes, leaves

_HOLD_NO_TENSORS = (
    *(bool, int, float, complex, str, bytes, type(None), type, enum.Enum, range, slice),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, nn.Module),
)


def types_in(value: Any) -> tuple[set[str], set[str]]:
    """Name the types in a structure.

    Args:
        value: The structure.

    Returns:
        The names of containers, objects, tensors and plain values in it, empty containers left out;
        and the names of those that could hold tensors and cannot be looked into.
    """
    names: set[str] = set()
    opaque: set[str] = set()
    _walk(value, names, 0)
    for leaf in leaves(value):
        item = leaf.value
        if isinstance(item, Tensor):
            names.add(f"{type(item).__name__} of {str(item.dtype).removeprefix('torch.')}")
            continue
        names.add("None" if item is None else type(item).__name__)
        looked_into = isinstance(item, _HOLD_NO_TENSORS) or attributes(item) is not None
        if not looked_into and not callable(item) and type(item).__module__ != "numpy":
            if not isinstance(item, (list, tuple, dict, set, frozenset)):
                opaque.add(type(item).__name__)
    return names - {"tuple", "list"}, opaque


def _walk(value: Any, names: set[str], depth: int) -> None:
    """Add the classes of objects and containers on the way to the leaves."""
    if isinstance(value, (Tensor, *_HOLD_NO_TENSORS)) or depth > 6:
        return
    if isinstance(value, (list, tuple)):
        if hasattr(value, "_fields"):
            names.add(type(value).__name__)
        for item in value:
            _walk(item, names, depth + 1)
    elif isinstance(value, dict):
        if value:
            names.add(type(value).__name__)
        for item in value.values():
            _walk(item, names, depth + 1)
    elif not pytree.tree_is_leaf(value):
        names.add(type(value).__name__)
    else:
        names.add(type(value).__name__)
        for item in (attributes(value) or {}).values():
            if isinstance(item, (list, tuple, dict)) and depth < 2:
                _walk(item, names, depth + 1)
