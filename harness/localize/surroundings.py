"""What code can read besides its modules and arguments: globals, contexts, modes and hooks.

None of it is copied by a checkpoint, so a replay that runs after it was changed computes something
else. It is evidence where nothing nearer explains a difference.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from harness.localize.generators import generators_in
from harness.localize.state import Place, State
from harness.localize.values import Leaf, leaves_of
from wcn_ckpt.checkpointing.replay.generators import names_in

_DEEPEST = 3
_LARGEST_TENSOR = 1 << 16
_LIBRARIES = sys.stdlib_module_names | {"torch", "numpy", "harness"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")

Variables = dict[Place, tuple[Any, Any]]
"""Where a variable is -> what holds it, and its key there."""


class Surroundings:
    """The variables that the code of some modules refers to, and what else surrounds it.

    Args:
        modules: Path and module.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        self._modules = list(modules)
        self._hooks: dict[Place, dict[int, Any]] = {
            Place("hooks", "", f"{path}.{kind}" if path else kind): getattr(module, kind)
            for path, module in self._modules
            for kind in _HOOKS
        }
        self._variables: Variables = {}
        self._seen: set[int] = set()
        classes = dict.fromkeys(cls for _, m in self._modules for cls in type(m).__mro__)
        for cls in classes:
            if not _is_library(cls.__module__):
                for value in vars(cls).values():
                    self._follow(value, _DEEPEST)
        for _, module in self._modules:
            for value in vars(module).values():
                self._follow(value, _DEEPEST)

    @property
    def generators(self) -> dict[str, Any]:
        """The random generators among the variables, by readable name."""
        found: dict[str, Any] = {}
        for place, (holder, key) in self._variables.items():
            found.update(generators_in(_value(holder, key), place.name))
        return found

    def now(self) -> State:
        """Copy all of it as it is at this instant, in this thread."""
        state: State = {}
        for place, (holder, key) in self._variables.items():
            _add(state, place.kind, place.name, _value(holder, key))
        for variable, value in contextvars.copy_context().items():
            _add(state, "context variable", variable.name, value)
        for place, hooks in self._hooks.items():
            state[place] = _names_of([h for h in hooks.values() if not _is_of_the_lab(h)])
        modes = [mode for mode in _get_current_function_mode_stack() if mode is not None]  # type: ignore[no-untyped-call]  # torch leaves it untyped
        state[Place("setting", "", "torch function modes")] = _names_of(modes)
        state[Place("setting", "", "default dtype")] = str(torch.get_default_dtype())
        return state

    def _follow(self, value: Any, depth: int) -> None:
        """Note the variables that a function refers to, and follow the functions among them."""
        function = _function_of(value)
        if function is None or id(function) in self._seen or _is_library(function.__module__):
            return
        self._seen.add(id(function))
        for place, (holder, key) in _variables_of(function):
            self._variables.setdefault(place, (holder, key))
            if depth:
                self._follow(_value(holder, key), depth - 1)


def _is_library(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _LIBRARIES


def _is_of_the_lab(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("harness.localize.")


def _function_of(value: Any) -> types.FunctionType | None:
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        value = value.__func__
    elif isinstance(value, functools.partial):
        value = value.func
    elif isinstance(value, property):
        value = value.fget
    return value if isinstance(value, types.FunctionType) else None


def _variables_of(function: types.FunctionType) -> Iterator[tuple[Place, tuple[Any, Any]]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            place = Place("closure variable", "", f"{function.__qualname__}.{name}")
            yield place, (cell, "cell_contents")
    names = names_in(code)
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if isinstance(value, types.ModuleType | type):
            owner = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
            if not _is_library(owner):
                for inner in names:
                    if inner in vars(value):
                        yield Place("global", "", f"{name}.{inner}"), (value, inner)
        else:
            yield Place("global", "", name), (function.__globals__, name)


def _value(holder: Any, key: Any) -> Any:
    if isinstance(holder, dict):
        return holder.get(key)
    try:
        return getattr(holder, key, None)
    except ValueError:  # a closure variable that is not bound yet
        return None


def _add(state: State, kind: str, name: str, value: Any) -> None:
    if isinstance(value, Tensor) and value.numel() > _LARGEST_TENSOR:
        return
    leaves: dict[str, Leaf] = leaves_of(value, name)
    for path, leaf in leaves.items():
        state[Place(kind, "", path)] = leaf


def _names_of(values: Iterable[Any]) -> str:
    return ", ".join(getattr(v, "__qualname__", type(v).__qualname__) for v in values) or "none"
