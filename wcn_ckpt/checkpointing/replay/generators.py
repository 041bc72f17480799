"""Random generators that a block can draw from without being given one.

They are attributes of its modules, or lie in containers and objects there, or are variables that
its functions close over, or globals that these name.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn

from wcn_ckpt.checkpointing.parts import attributes_of, is_plain_object
from wcn_ckpt.checkpointing.replay.rng import is_generator

_DEEPEST = 4
_MOST_ITEMS = 256
_ATOMS = (type(None), bool, int, float, complex, str, bytes, Tensor, nn.Module)
_SKIPPED = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages whose functions draw from global generators or from those that they are given."""


def generators_in(values: Iterable[Any]) -> list[Any]:
    """Find the generators in some values, as far as a few steps lead to them."""
    return reached_from(values, is_generator)


def reached_from(values: Iterable[Any], is_wanted: Callable[[Any], bool]) -> list[Any]:
    """Find what is wanted in some values, as far as a few steps lead to it.

    Args:
        values: anything; modules and tensors in it are not entered.
        is_wanted: tells what to return, and not to enter.

    Returns:
        Each thing once, in the order found.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = deque((value, _DEEPEST) for value in values)
    while waiting:
        value, depth = waiting.popleft()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if is_wanted(value):
            found[id(value)] = value
        elif depth:
            waiting.extend((part, depth - 1) for part in islice(_parts(value), _MOST_ITEMS))
    return list(found.values())


def generators_of(modules: Iterable[nn.Module]) -> list[Any]:
    """Find the generators that modules hold, and those that methods of their classes refer to."""
    return generators_in(referred_by(modules))


def referred_by(modules: Iterable[nn.Module]) -> list[Any]:
    """What modules hold in attributes, and what the classes of them define."""
    values: list[Any] = []
    classes: dict[type[Any], None] = {}
    for module in modules:
        values += vars(module).values()
        classes |= dict.fromkeys(type(module).__mro__)
    for kind in classes:
        if kind.__module__.partition(".")[0] not in _SKIPPED:
            values += vars(kind).values()
    return values


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from list(value.values())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from list(value)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, types.FunctionType):
        if value.__module__ is not None and value.__module__.partition(".")[0] not in _SKIPPED:
            yield from _referred(value)
    elif is_plain_object(type(value)):
        yield from (part for _, part in attributes_of(value))


def _referred(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function refers to: closed over, as a default, or by a global name."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    names = names_in(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType | type):
            if value.__name__.partition(".")[0] not in _SKIPPED:
                yield from (vars(value)[inner] for inner in names if inner in vars(value))
        else:
            yield value


@functools.cache
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals and attributes that code refers to, functions inside it included."""
    inner = (names_in(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return tuple(dict.fromkeys((*code.co_names, *(name for names in inner for name in names))))
