"""Python state that a forward reaches and that is no plain attribute of its modules.

Modules hold objects, arrays and iterators; their classes hold lists; their methods read globals,
closures and default arguments. Comparing all of that at each point of each case would take longer
than the cases. So it is looked at once, before and after a backward.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from harness.attributes import LARGEST, LEFT_OUT, is_array, is_entered, is_foreign
from harness.verification.hidden_writes import Written
from harness.walking import dotted_modules
from wcn_ckpt.checkpointing.parts import attributes_of
from wcn_ckpt.checkpointing.replay.generators import names_in

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_SEQUENCES = (list, tuple, deque)
_FUNCTIONS = (types.FunctionType, types.MethodType, staticmethod, classmethod, property)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_DEEPEST = 8
MOST_VALUES = 20_000
"""Values of a model that are looked at; one more is found where there are more."""


def snapshot(module: nn.Module) -> dict[str, Any]:
    """Note every value that the modules of a tree, their classes and their functions hold.

    Args:
        module: The tree.

    Returns:
        Path -> value; tensors and arrays as copies. Parameters and buffers are left out, and all
        values after the first ``MOST_VALUES`` and one.
    """
    walk = _Walk()
    for prefix, child in dotted_modules(module):
        for name, value in attributes_of(child):
            if name not in LEFT_OUT:
                walk.value(f"{prefix}{name}", value, 0)
        for hooks in _HOOKS:
            for hook in vars(child)[hooks].values():
                walk.value(f"{prefix}{hooks}", hook, 0)
        for kind in type(child).__mro__:
            walk.kind(kind, 0)
    return walk.found


def written(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Written]:
    """List what differs between two snapshots of a tree, without parts of what is listed already.

    Args:
        before: The first one.
        after: The second one.
    """
    changed: list[Written] = []
    for path in sorted({*before, *after}, key=lambda path: (len(path), path)):
        if any(path.startswith((f"{known.path}[", f"{known.path}.")) for known in changed):
            continue
        if path not in before or path not in after or not _same(before[path], after[path]):
            sides = [side.get(path, "nothing") for side in (before, after)]
            changed.append(Written(path, *map(_text, _first_difference(*sides))))
    return changed


class _Walk:
    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._seen: dict[int, Any] = {}
        self._kinds: set[type] = set()

    def value(self, path: str, value: Any, depth: int) -> None:
        if len(self.found) > MOST_VALUES or depth > _DEEPEST:
            return
        if isinstance(value, _PLAIN):
            self.found[path] = value
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self.found[path] = _copied(value)
        elif is_array(value) and not value.dtype.hasobject:
            self.found[path] = value.copy() if value.size <= LARGEST else value.sum()
        elif isinstance(value, itertools.count):
            self.found[path] = repr(value)
        elif isinstance(value, _FUNCTIONS):
            self.function(path, value, depth)
        elif isinstance(value, type):
            self.kind(value, depth)
        else:
            for name, part in self._parts(path, value):
                self.value(f"{path}{name}", part, depth + 1)

    def kind(self, kind: type, depth: int) -> None:
        if is_foreign(kind.__module__) or kind in self._kinds:
            return
        self._kinds.add(kind)
        for name, value in list(vars(kind).items()):
            if isinstance(value, _FUNCTIONS) or not name.startswith("__"):
                self.value(f"{kind.__qualname__}.{name}", value, depth + 1)

    def function(self, path: str, function: Any, depth: int) -> None:
        if isinstance(function, types.MethodType):
            self.value(f"{path}.__self__", function.__self__, depth + 1)
        if isinstance(function, property):
            for part in (function.fget, function.fset):
                self.value(path, part, depth + 1)
            return
        plain = getattr(function, "__func__", function)
        if not isinstance(plain, types.FunctionType) or is_foreign(plain.__module__):
            return
        name = plain.__qualname__
        for attribute, value in list(vars(plain).items()):
            self.value(f"{name}.{attribute}", value, depth + 1)
        for position, value in enumerate(plain.__defaults__ or ()):
            self.value(f"{name}.__defaults__[{position}]", value, depth + 1)
        for keyword, value in (plain.__kwdefaults__ or {}).items():
            self.value(f"{name}.__kwdefaults__[{keyword!r}]", value, depth + 1)
        for variable, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True):
            try:
                self.value(f"{name}.{variable}", cell.cell_contents, depth + 1)
            except ValueError:  # a variable that has no value yet
                continue
        self._globals(plain, depth)

    def _globals(self, function: types.FunctionType, depth: int) -> None:
        names = set(names_in(function.__code__))
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if not isinstance(value, types.ModuleType):
                self._global(f"{function.__module__}.{name}", value, depth)
            elif not is_foreign(value.__name__):
                for inner in sorted(names & vars(value).keys()):
                    self._global(f"{value.__name__}.{inner}", vars(value)[inner], depth)

    def _global(self, path: str, value: Any, depth: int) -> None:
        if not isinstance(value, types.ModuleType | nn.Module):
            self.value(path, value, depth + 1)

    def _parts(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping):
            self.found[path] = f"{type(value).__name__} of {len(value)}"
            yield from ((f"[{key!r}]", item) for key, item in list(value.items()))
        elif isinstance(value, _SEQUENCES) or (is_array(value) and value.ndim):
            self.found[path] = f"{type(value).__name__} of {len(value)}"
            yield from ((f"[{index}]", item) for index, item in enumerate(list(value)))
        elif isinstance(value, set | frozenset):
            self.found[path] = f"{type(value).__name__} of {len(value)}"
        elif isinstance(value, functools.partial):
            yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        elif not isinstance(value, nn.Module | types.ModuleType) and is_entered(type(value)):
            yield from ((f".{name}", item) for name, item in attributes_of(value))


def _copied(tensor: Tensor) -> Any:
    try:
        plain = tensor.detach()
        return plain.clone() if plain.numel() <= LARGEST else plain.sum()
    except (NotImplementedError, RuntimeError):  # a layout or a subclass that cannot be copied
        return f"{type(tensor).__name__} of shape {tuple(tensor.shape)}"


def _same(before: Any, after: Any) -> bool:
    if type(before) is not type(after):
        return False
    if isinstance(before, Tensor):
        return before.shape == after.shape and bool(
            torch.allclose(before, after, rtol=0, atol=0, equal_nan=True)
        )
    if hasattr(before, "__array__"):
        return bool(before.shape == after.shape and ((before == after) | (before != before)).all())
    return bool(before == after or (before != before and after != after))


def _first_difference(before: Any, after: Any) -> tuple[Any, Any]:
    """Return the first elements that differ, where two arrays or tensors of one shape are given."""
    shape = getattr(before, "shape", None)
    if shape is None or shape != getattr(after, "shape", None):
        return before, after
    pairs = zip(before.reshape(-1).tolist(), after.reshape(-1).tolist(), strict=True)
    return next((pair for pair in pairs if not _same(*pair)), (before, after))


def _text(value: Any) -> str:
    return " ".join(str(value).split())[:60]
