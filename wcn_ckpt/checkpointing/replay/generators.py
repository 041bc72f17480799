"""Random generators that a block can draw from without being given one.

They are attributes of its modules, or lie in containers and objects there, or are variables that
its functions close over, or globals that these name. Any of them may be replaced between two
forwards, or be made when the block first draws.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn

from wcn_ckpt.checkpointing.parts import attributes_of, is_plain_object
from wcn_ckpt.checkpointing.replay.rng import is_generator, is_global_generator

_DEEPEST = 4
_MOST_ITEMS = 256
_ATOMS = (type(None), bool, int, float, complex, str, bytes, Tensor, nn.Module)
_SKIPPED = sys.stdlib_module_names | {"torch", "numpy"}
"""Packages whose functions draw from global generators or from those that they are given."""

_OWN = "wcn_ckpt.checkpointing."
_REGISTERED = ("_parameters", "_buffers", "_modules")
_OF_TORCH = frozenset(vars(nn.Module()))
_ABSENT: Any = object()


class Place(NamedTuple):
    """Where something lies.

    Attributes:
        holder: a dictionary, a list, a class, or a weak reference to a module; None where nothing
            can be put.
        key: a key, an index or the name of an attribute.
        value: what lies there.
    """

    holder: Any
    key: Any
    value: Any

    def present(self) -> Any:
        """Return what lies there now."""
        holder, key = self.holder, self.key
        if isinstance(holder, list):
            return holder[key] if key < len(holder) else _ABSENT
        return _entries(holder).get(key, _ABSENT)

    def put(self) -> None:
        """Put the value there."""
        holder, key, value = self
        if isinstance(holder, type):
            setattr(holder, key, value)
        elif isinstance(holder, list):
            holder[key] = value
        elif value is _ABSENT:
            _entries(holder).pop(key, None)
        else:
            _entries(holder)[key] = value


def _entries(holder: Any) -> Any:
    if isinstance(holder, weakref.ref):
        module = holder()
        return {} if module is None else vars(module)
    return vars(holder) if isinstance(holder, type) else holder


class HeldGenerators:
    """The generators that a boundary holds or refers to, valid as long as `are_all` says so.

    Args:
        modules: its modules, itself first; it may keep this object, and is not referenced.

    Attributes:
        found: the generators.
    """

    __slots__ = ("_counts", "_holders", "_keys", "_own", "_places", "found")

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        modules = list(modules)
        self._places: list[Place] = []
        self._holders = [
            vars(m) for m in modules[1:] if not type(m).__module__.startswith("torch.")
        ]
        self.found = _reached(_held_by(modules), is_generator, self._note)
        self._own = set(vars(modules[0]))
        self._keys = list(map(set, self._holders))
        self._counts = list(map(len, self._keys))

    def _note(self, place: Place) -> None:
        """Remember where a generator lies, and where one may be put."""
        holder, key, value = place
        if holder is None or key in _OF_TORCH or str(key).startswith("__"):
            return
        if is_generator(value):
            self._places.append(place)
            if type(holder) is dict and "__name__" not in holder:
                self._watch(holder)
        elif value is None:
            self._places.append(place)
        elif type(value) is dict and not value:
            self._watch(value)

    def _watch(self, holder: dict[Any, Any]) -> None:
        if not any(holder is known for known in self._holders):
            self._holders.append(holder)

    def are_all(self, boundary: nn.Module) -> bool:
        """Whether no place holds something else than it did, and none was added."""
        return (
            len(boundary.__dict__) == len(self._own)
            and (not self._holders or list(map(len, self._holders)) == self._counts)
            and (not self._places or all(p.present() is p.value for p in self._places))
        )

    def replaced(self, boundary: nn.Module) -> list[Place]:
        """Return the places that hold or held a generator, and hold something else than before.

        Returns:
            Each with what it held: a forward has made the generator, or its caller has replaced it
            since, and a replay has to find what its forward found.
        """
        added = [
            Place(holder, key, _ABSENT)
            for holder, keys in zip(
                (vars(boundary), *self._holders), (self._own, *self._keys), strict=True
            )
            for key in holder.keys() - keys
        ]
        return [
            place
            for place in (*self._places, *added)
            if (now := place.present()) is not place.value
            and (is_generator(place.value) or generators_in([now]))
        ]


def exchange(places: Iterable[Place]) -> list[Place]:
    """Let places hold what they are said to; return the same with what they held until now."""
    present = [place._replace(value=place.present()) for place in places]
    for place in places:
        place.put()
    return present


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
    return _reached(_loose(values), is_wanted, lambda place: None)


def referred_by(modules: Iterable[nn.Module]) -> list[Any]:
    """What modules hold in attributes, and what the classes of them define."""
    return [place.value for place in _held_by(modules)]


def _reached(
    places: Iterable[Place], is_wanted: Callable[[Any], bool], note: Callable[[Place], None]
) -> list[Any]:
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = deque((place, _DEEPEST) for place in places)
    while waiting:
        place, depth = waiting.popleft()
        note(place)
        value = place.value
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen.add(id(value))
        if is_wanted(value):
            found[id(value)] = value
        elif depth:
            waiting.extend((part, depth - 1) for part in islice(_parts(value), _MOST_ITEMS))
    return list(found.values())


def _held_by(modules: Iterable[nn.Module]) -> list[Place]:
    places: list[Place] = []
    classes: dict[type[Any], None] = {}
    for module in modules:
        held, this = vars(module), weakref.ref(module)
        places += [Place(this, key, value) for key, value in held.items() if key not in _REGISTERED]
        classes |= dict.fromkeys(type(module).__mro__)
    for kind in classes:
        if _is_entered(kind.__module__):
            places += [Place(kind, name, value) for name, value in vars(kind).items()]
    return places


def _parts(value: Any) -> Iterator[Place]:
    if isinstance(value, dict):
        yield from [Place(value, key, part) for key, part in value.items()]
    elif isinstance(value, list):
        yield from [Place(value, index, part) for index, part in enumerate(value)]
    elif isinstance(value, tuple | set | frozenset | deque):
        yield from _loose(list(value))
    elif isinstance(value, functools.partial):
        yield from _loose((value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield from _loose((value.__self__, value.__func__))
    elif isinstance(value, types.BuiltinMethodType):
        if is_generator(value.__self__) and not is_global_generator(value.__self__):
            yield from _loose([value.__self__])
    elif isinstance(value, staticmethod | classmethod):
        yield from _loose([value.__func__])
    elif isinstance(value, property):
        yield from _loose([value.fget])
    elif isinstance(value, types.FunctionType):
        if _is_entered(value.__module__):
            yield from _referred(value)
    elif isinstance(value, functools._lru_cache_wrapper):
        if _is_entered(value.__module__):
            yield from _loose(gc.get_referents(value))  # its results are among them
    elif _is_taken_apart(type(value)):
        held = getattr(value, "__dict__", None)
        for name, part in attributes_of(value):
            is_entry = held is not None and name in held
            yield Place(held if is_entry else None, name, part)


def _loose(values: Iterable[Any]) -> Iterator[Place]:
    return (Place(None, None, value) for value in values)


def _is_entered(module: str | None) -> bool:
    """Whether functions and classes of a module may draw from generators that they refer to."""
    return (
        module is not None
        and module.partition(".")[0] not in _SKIPPED
        and not module.startswith(_OWN)
    )


def _is_taken_apart(kind: Any) -> bool:
    """Whether to look at the attributes of instances."""
    if kind.__module__.startswith(_OWN):
        return False
    if _is_entered(kind.__module__) and (
        dataclasses.is_dataclass(kind) or "__getstate__" in vars(kind)
    ):
        return True
    return is_plain_object(kind) or bool(kind.__module__.startswith("torch.utils.data"))


def _referred(function: types.FunctionType) -> Iterator[Place]:
    """Yield what a function refers to: closed over, as a default, or by a global name."""
    for cell in function.__closure__ or ():
        try:
            yield from _loose([cell.cell_contents])
        except ValueError:  # not bound yet
            continue
    yield from _loose((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
    names = names_in(function.__code__)
    named = function.__globals__
    for name in names:
        value = named.get(name, _ABSENT)
        if isinstance(value, types.ModuleType | type):
            if _is_entered(value.__name__):
                holder = value if isinstance(value, type) else vars(value)
                inside = vars(value)
                yield from (
                    Place(holder, inner, inside[inner]) for inner in names if inner in inside
                )
        elif value is not _ABSENT:
            yield Place(named, name, value)


@functools.cache
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals and attributes that code refers to, functions inside it included."""
    inner = (names_in(const) for const in code.co_consts if isinstance(const, types.CodeType))
    return tuple(dict.fromkeys((*code.co_names, *(name for names in inner for name in names))))
