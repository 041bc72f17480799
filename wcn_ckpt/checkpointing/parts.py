"""Values taken apart into their tensors, and put together again as they were.

Containers, dataclasses, geometries and instances of ordinary Python classes are taken apart. What
occurs twice in the arguments of a call is one object again when it is rebuilt.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

Built = dict[int, Any]
"""What was rebuilt so far, by the identity of the original."""

Rebuild = Callable[[Sequence[Tensor], Built], Any]
"""Puts a value together, given the tensors for all positions."""

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type})
"""Types of values that are never taken apart or copied."""
_BASES = (collections.OrderedDict, dict, list)
_MOST_OBJECTS = 4096
"""Objects in the arguments of one call up to which they are taken apart."""


class Lent:
    """An object that holds numbers, texts and the like alone, as it was when it was taken.

    As long as it still is, a replay gets the object itself, so that code that compares it by
    identity, or looks it up in a table, takes the branch that its forward took. It is not kept
    alive: it may come to hold an output, whose graph holds this.

    Args:
        value: the object.

    Raises:
        TypeError: it cannot be referred to weakly.
    """

    __slots__ = ("_away", "_entries", "_reference")

    def __init__(self, value: Any) -> None:
        self._reference = weakref.ref(value)
        self._entries = dict(attributes_of(value))
        self._away: Any = None

    def lend(self) -> Any:
        """Return the object, to be given back; None where it is gone, or not what it was."""
        value = self._reference()
        if value is not None and self._is_unchanged(value):
            self._away = value
        return self._away

    def give_back(self) -> None:
        """Undo what a replay has set in the object: it may have ended before the block does."""
        value, self._away = self._away, None
        if value is not None and not self._is_unchanged(value):
            for name in dict(attributes_of(value)).keys() - self._entries.keys():
                object.__delattr__(value, name)
            _set_attributes(value, self._entries.items())

    def _is_unchanged(self, value: Any) -> bool:
        present = dict(attributes_of(value))
        return present.keys() == self._entries.keys() and all(
            present[name] is part for name, part in self._entries.items()
        )


class _TooManyObjectsError(Exception):
    """A value refers to more objects than are taken apart in each call."""


class Parts:
    """Takes the arguments of one call apart.

    Attributes:
        tensors: every tensor found, once.
        others: every other leaf.
        lent: objects that a replay may get themselves.
    """

    __slots__ = ("_alive", "_building", "_count", "_known", "lent", "others", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.others: list[Any] = []
        self.lent: list[Lent] = []
        self._known: dict[int, Rebuild] = {}
        self._alive: list[Any] = []  # so that no identity is used again
        self._building: set[int] = set()
        self._count = 0

    def take_argument(self, value: Any) -> Rebuild:
        """Take one argument apart, or leave it whole where it refers to too much."""
        found, others = len(self.tensors), len(self.others)
        known = dict(self._known)
        try:
            return self._take(value)
        except (_TooManyObjectsError, RecursionError):
            del self.tensors[found:], self.others[others:]
            self._known, self._count = known, 0
            self._building.clear()
            return self._leave(value)

    def _take(self, value: Any) -> Rebuild:
        kind: Any = type(value)
        if kind in ATOMS:
            return lambda tensors, built: value
        known = self._known.get(id(value))
        if known is not None:
            return known
        if isinstance(value, Tensor):
            return self._remember(value, self._tensor(value))
        self._count += 1
        if self._count > _MOST_OBJECTS:
            raise _TooManyObjectsError
        if kind is list or kind is dict:
            return self._container(value, kind)
        if kind is set or kind is bytearray or _is_array(value):
            entry = value.copy()
            return self._remember(value, _once(value, lambda tensors, built: entry.copy()))
        if isinstance(value, nn.Module):
            return self._leave(value)
        if id(value) in self._building:  # it holds itself, and cannot be made before its parts
            return self._leave(value)
        node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(value))
        if node is not None:
            return self._node(value, node)
        if dataclasses.is_dataclass(value) or is_plain_object(kind):
            return self._object(value)
        for base in _BASES:
            if isinstance(value, base):
                return self._container(value, base) if _is_plain(kind, base) else self._leave(value)
        return self._leave(value)

    def _remember(self, value: Any, rebuild: Rebuild) -> Rebuild:
        self._alive.append(value)
        self._known[id(value)] = rebuild
        return rebuild

    def _leave(self, value: Any) -> Rebuild:
        self.others.append(value)
        return lambda tensors, built: value

    def _tensor(self, tensor: Tensor) -> Rebuild:
        position = len(self.tensors)
        self.tensors.append(tensor)
        return lambda tensors, built: tensors[position]

    def _container(self, value: Any, base: Any) -> Rebuild:
        """Take a list or dictionary apart, or an instance of a class derived from one."""
        fill: list[Callable[[Any, Sequence[Tensor], Built], None]] = []

        def make(tensors: Sequence[Tensor], built: Built) -> Any:
            if key in built:
                return built[key]
            made = built[key] = base.__new__(kind)
            for part in fill:
                part(made, tensors, built)
            return made

        key = id(value)
        kind: Any = type(value)
        self._remember(value, make)
        if kind is not base:
            self._fill_attributes(value, fill)
        if base is list:
            items = [self._take(item) for item in list.__iter__(value)]
            fill.append(
                lambda made, tensors, built: list.extend(
                    made, [item(tensors, built) for item in items]
                )
            )
        else:
            pairs = [(self._take(k), self._take(v)) for k, v in base.items(value)]

            def fill_pairs(made: Any, tensors: Sequence[Tensor], built: Built) -> None:
                for k, v in pairs:
                    base.__setitem__(made, k(tensors, built), v(tensors, built))

            fill.append(fill_pairs)
        return make

    def _node(self, value: Any, node: pytree.NodeDef) -> Rebuild:
        """Take apart what torch's pytree knows: tuples, ordered dictionaries, geometries."""
        # Not with its `tree_flatten`, which leaves a reference cycle with the value in it.
        children, context = node.flatten_fn(value)
        self._building.add(id(value))
        parts = [self._take(child) for child in children]
        self._building.discard(id(value))

        def rebuild(tensors: Sequence[Tensor], built: Built) -> Any:
            return node.unflatten_fn([part(tensors, built) for part in parts], context)

        return self._remember(value, _once(value, rebuild))

    def _object(self, value: Any) -> Rebuild:
        fill: list[Callable[[Any, Sequence[Tensor], Built], None]] = []
        lent = self._lent(value)

        def make(tensors: Sequence[Tensor], built: Built) -> Any:
            if key in built:
                return built[key]
            itself = None if lent is None else lent.lend()
            if itself is not None:
                return built.setdefault(key, itself)
            made = built[key] = kind.__new__(kind) if is_namespace else object.__new__(kind)
            for part in fill:
                part(made, tensors, built)
            return made

        key = id(value)
        kind: Any = type(value)
        is_namespace = kind is types.SimpleNamespace
        self._remember(value, make)
        self._fill_attributes(value, fill)
        return make

    def _lent(self, value: Any) -> Lent | None:
        if not all(type(part) in ATOMS for _, part in attributes_of(value)):
            return None
        try:
            lent = Lent(value)
        except TypeError:  # its class has slots alone
            return None
        self.lent.append(lent)
        return lent

    def _fill_attributes(self, value: Any, fill: list[Any]) -> None:
        entries = list(attributes_of(value))
        plain = [entry for entry in entries if type(entry[1]) in ATOMS]
        taken = [(name, self._take(part)) for name, part in entries if type(part) not in ATOMS]

        def set_attributes(made: Any, tensors: Sequence[Tensor], built: Built) -> None:
            # Plain ones first: in a cycle, what is made next may ask this object for its hash.
            _set_attributes(made, plain)
            for name, part in taken:
                _set_attributes(made, [(name, part(tensors, built))])

        fill.append(set_attributes)


def _once(value: Any, rebuild: Rebuild) -> Rebuild:
    key = id(value)

    def make(tensors: Sequence[Tensor], built: Built) -> Any:
        if key not in built:
            built[key] = rebuild(tensors, built)
        return built[key]

    return make


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that an instance holds, in its dictionary or in slots."""
    kind: Any = type(value)
    for name in _slots(kind):
        if hasattr(value, name):
            yield name, getattr(value, name)
    yield from list(getattr(value, "__dict__", {}).items())


def _set_attributes(value: Any, entries: Iterable[tuple[str, Any]]) -> None:
    """Set attributes where they lie, past what the class does when one is set."""
    kind: Any = type(value)
    slots = _slots(kind)
    for name, part in entries:
        if name in slots:
            object.__setattr__(value, name, part)
        else:
            value.__dict__[name] = part


@functools.cache
def _slots(kind: type[Any]) -> tuple[str, ...]:
    names: list[str] = []
    for cls in kind.__mro__:
        own: str | Iterable[str] = vars(cls).get("__slots__", ())
        for name in (own,) if isinstance(own, str) else own:
            mangled = name.startswith("__") and not name.endswith("__")
            names.append(f"_{cls.__name__.lstrip('_')}{name}" if mangled else name)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


_PLAIN_MODULES = frozenset({"__main__", "argparse", "collections", "types"})
_COPY_PROTOCOL = ("__copy__", "__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__")


def is_plain_object(kind: Any) -> bool:
    """Whether instances are nothing but their attributes: of a class written in Python.

    Classes of torch and of the standard library are left whole, and those that say how they are
    copied.
    """
    return kind is types.SimpleNamespace or _is_plain(kind, object)


@functools.cache
def _is_plain(kind: Any, base: Any) -> bool:
    package = kind.__module__.partition(".")[0]
    if package == "torch" or (package in sys.stdlib_module_names and package not in _PLAIN_MODULES):
        return False
    if kind.__new__ is not base.__new__ or not kind.__flags__ & _HEAP_TYPE:
        return False
    own = [cls for cls in kind.__mro__ if cls not in base.__mro__]
    return package == "collections" or not any(
        name in vars(cls) for cls in own for name in _COPY_PROTOCOL
    )


_HEAP_TYPE = 1 << 9
"""Flag of a class that was made by a `class` statement."""


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
