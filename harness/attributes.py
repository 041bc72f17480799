"""Walks over what the modules of a tree hold in Python, quick enough for each point of a step.

Numbers, texts, tensors, arrays and random generators are looked at where a module holds them, and
inside the containers and the plain objects that it holds.
"""

from __future__ import annotations

import math
import random
import sys
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harness.walking import dotted_modules
from wcn_ckpt.checkpointing.parts import attributes_of
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

LEFT_OUT = frozenset(vars(nn.Module())) - {"training"} | frozenset(dir(GradientCheckpointingMixin))
"""Attributes of modules that belong to torch, and to boundaries of wcn_ckpt."""

LARGEST = 1 << 20
"""Elements up to which an array, and in a snapshot also a tensor, is compared in full."""

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CONSTANTS = (torch.dtype, torch.device, torch.Size)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_FOREIGN = frozenset(("torch", "numpy", "wcn_ckpt", "harness", "matrix")) | sys.stdlib_module_names
"""Packages whose own state is none of a model."""
_MOST_ITEMS = 64
_MOST_VALUES = 4096
_DEEPEST = 8


class Held(NamedTuple):
    """What the modules of a tree hold at one moment."""

    values: dict[str, Any]
    """Path -> value: numbers and texts as they are, containers and objects as a description."""
    generators: dict[str, Any]
    """Path -> random generator of torch, Python or NumPy."""


class _Tensor(NamedTuple):
    tensor: Tensor
    version: int


class _Array(NamedTuple):
    array: Any
    digest: int


def held(root: nn.Module) -> Held:
    """Look at what each module of a tree holds besides modules and the values of their tensors.

    Args:
        root: The tree.
    """
    walk = _Walk()
    for prefix, module in dotted_modules(root):
        own: dict[str, Any] = module.__dict__
        for name, value in own.items():
            if name not in LEFT_OUT:
                look = _look_for(value.__class__)
                if look is not None:
                    look(walk, prefix + name, value, 0)
        for name, parameter in own["_parameters"].items():
            if parameter is not None:
                walk.values[f"{prefix}{name}.requires_grad"] = parameter.requires_grad
        for name in _HOOKS:
            if hooks := own[name]:
                walk.values[prefix + name] = f"hooks: {len(hooks)}"
    return Held(walk.values, walk.generators)


def has_moved(before: Any, after: Any) -> bool:
    """Tell whether a value that was held has changed, of two that :func:`held` gave."""
    if type(before) is not type(after):
        return True
    if isinstance(before, _Tensor):
        return before.tensor is not after.tensor or before.version != after.version
    if isinstance(before, _Array):
        return before.array is not after.array or before.digest != after.digest
    return bool(before != after)


def told(value: Any) -> Any:
    """Return a value as it is to be compared with another arm's: a tensor, number or text."""
    if isinstance(value, _Tensor):
        return value.tensor.detach().clone()
    if isinstance(value, _Array):
        try:
            return torch.from_numpy(value.array.copy())
        except (TypeError, ValueError):  # texts, dates, records and foreign byte orders
            return f"array of shape {value.array.shape} with digest {value.digest:08x}"
    return value


def is_array(value: Any) -> bool:
    """Tell whether a value is an array of NumPy, without importing it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_foreign(module: str | None) -> bool:
    """Tell whether what a Python module defines has no state of a model's."""
    return (module or "builtins").partition(".")[0] in _FOREIGN


def is_entered(kind: type) -> bool:
    """Tell whether the attributes of an instance of a class may be state of a model."""
    return kind is types.SimpleNamespace or not is_foreign(kind.__module__)


class _Walk:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}
        self._entered: dict[int, Any] = {}

    def plain(self, path: str, value: Any, depth: int) -> None:
        self.values[path] = value

    def number(self, path: str, value: Any, depth: int) -> None:
        self.values[path] = "nan" if math.isnan(value) else value

    def tensor(self, path: str, value: Tensor, depth: int) -> None:
        self.values[path] = _Tensor(value, 0 if value.is_inference() else value._version)

    def array(self, path: str, value: Any, depth: int) -> None:
        if value.size <= LARGEST and not value.dtype.hasobject:
            self.values[path] = _Array(value, zlib.crc32(value.tobytes()))

    def written_out(self, path: str, value: Any, depth: int) -> None:
        self.values[path] = repr(value)

    def generator(self, path: str, value: Any, depth: int) -> None:
        self.generators[path] = value

    def sequence(self, path: str, value: Any, depth: int) -> None:
        items = list(value)
        if not self._is_told(path, value, items):
            self._parts(path, value, ((f"[{i}]", item) for i, item in enumerate(items)), depth)

    def mapping(self, path: str, value: Any, depth: int) -> None:
        items = list(value.items())
        if not self._is_told(path, value, [part for item in items for part in item]):
            named = ((_key(i, key), item) for i, (key, item) in enumerate(items))
            self._parts(path, value, named, depth)

    def unordered(self, path: str, value: Any, depth: int) -> None:
        self._is_told(path, value, list(value))

    def instance(self, path: str, value: Any, depth: int) -> None:
        self.values[path] = type(value).__name__
        self._parts(path, value, ((f".{name}", part) for name, part in attributes_of(value)), depth)

    def _is_told(self, path: str, value: Any, items: list[Any]) -> bool:
        """Describe a container by its length; by its items too, where they are few plain values.

        Returns:
            Whether that is all that is looked at.
        """
        self.values[path] = counted = f"{type(value).__name__} of {len(value)}"
        if len(value) > _MOST_ITEMS:
            return True
        if not all(isinstance(item, _SCALARS) for item in items):
            return False
        shown = sorted(map(repr, items)) if isinstance(value, set | frozenset) else items
        self.values[path] = f"{counted}: {shown}"
        return True

    def _parts(self, path: str, value: Any, parts: Iterable[tuple[str, Any]], depth: int) -> None:
        if depth == _DEEPEST or id(value) in self._entered or len(self.values) > _MOST_VALUES:
            return
        self._entered[id(value)] = value
        for name, part in parts:
            look = _look_for(part.__class__)
            if look is not None:
                look(self, path + name, part, depth + 1)


_Look = Callable[[_Walk, str, Any, int], None]


# Telling what a value is by its type, once for each type: asking each value at each point would
# take longer than the forward of a small block.
@cache
def _look_for(kind: type) -> _Look | None:
    for kinds, look in _looks():
        if issubclass(kind, kinds):
            return look
    return _Walk.instance if is_entered(kind) and not issubclass(kind, type) else None


def _looks() -> Iterable[tuple[tuple[type, ...], _Look | None]]:
    yield (nn.Module, types.ModuleType), None
    yield (Tensor,), _Walk.tensor
    yield (float,), _Walk.number
    yield (complex, bytes, *_CONSTANTS), _Walk.written_out
    yield _SCALARS, _Walk.plain
    yield (list, tuple, deque), _Walk.sequence
    yield (Mapping,), _Walk.mapping
    yield (set, frozenset), _Walk.unordered
    yield (torch.Generator, random.Random), _Walk.generator
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        yield (numpy.random.Generator, numpy.random.RandomState), _Walk.generator
        yield (numpy.ndarray,), _Walk.array


def _key(position: int, key: Any) -> str:
    """Name an entry by its key; by its position where the key is told by its address alone."""
    return f"[{key!r}]" if isinstance(key, _SCALARS) else f"[#{position}]"
