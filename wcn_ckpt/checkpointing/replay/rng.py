"""States of random number generators that torch's checkpoint does not know.

Reading the whole state of a generator costs tens of microseconds, so it is read only when it has
changed. A mark of a few words tells: they are read in place, from the memory of the generator.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Any

import torch

_WORDS = 624
"""Words in the state of a Mersenne Twister, which is behind `random` and numpy's old API."""

_WORD_BYTES = ctypes.sizeof(ctypes.c_uint32)


def _words_of(generator: random.Random) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(generator) + object.__basicsize__)


def _layout_is_known() -> bool:
    """Whether reading the memory of a generator gives what `getstate` gives."""
    if sys.implementation.name != "cpython" or sys.byteorder != "little":
        return False
    probe = random.Random(20260)
    words = _words_of(probe)
    for _ in range(3):
        state = probe.getstate()[1]
        if words.value != state[_WORDS] | state[0] << 32:
            return False
        for _ in range(500):
            probe.random()
    return True


class GlobalStates:
    """States of `random` and `numpy.random` at one moment.

    Args:
        mark: what their words were then.
    """

    __slots__ = ("mark", "numpy", "python")

    def __init__(self, mark: Any) -> None:
        self.mark = mark
        self.python = random.getstate()
        numpy = sys.modules.get("numpy.random.mtrand")
        self.numpy = None if numpy is None else numpy.get_state(legacy=False)

    def set(self) -> None:
        """Set both generators to these states."""
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy.random.mtrand"].set_state(self.numpy)

    def same(self, other: GlobalStates) -> bool:
        """Whether both generators were in the same state."""
        return bool(self.python == other.python) and self.same_numpy(other)

    def same_numpy(self, other: GlobalStates) -> bool:
        """Whether numpy was in the same state; sees every draw."""
        return _same(self.numpy, other.numpy)


def _same(a: Any, b: Any) -> bool:
    """Whether two states of numpy, dictionaries of dictionaries, numbers and arrays, are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if hasattr(a, "tobytes") and hasattr(b, "tobytes"):
        return bool(a.tobytes() == b.tobytes())
    return bool(a == b)


class _Watch:
    """Where the words of the global generators lie, and the states read last.

    CPython keeps the index of the next word in front of the words of `random`; numpy keeps it
    behind those of its Mersenne Twister. Each is read as one number with the word beside it, which
    changes with each draw and each new seed.
    """

    def __init__(self) -> None:
        self.instance: Any = random._inst
        self.python: Any = _words_of(self.instance) if _layout_is_known() else _Unknown()
        self.numpy_random: Any = None
        self.bit_generator: Any = None
        self.numpy: Any = _NoNumpy()
        self.latest = GlobalStates(None)

    def find_numpy(self) -> None:
        """Look for numpy, and follow it to a bit generator that it has not had before."""
        module = sys.modules.get("numpy.random.mtrand")
        if module is None:
            return
        self.numpy_random = module._rand
        self.bit_generator = self.numpy_random._bit_generator
        if type(self.bit_generator).__name__ == "MT19937":
            address = self.bit_generator.ctypes.state_address + (_WORDS - 1) * _WORD_BYTES
            self.numpy = ctypes.c_uint64.from_address(address)
        else:
            self.numpy = _Unknown()


class _NoNumpy:
    """Stands for the words of a generator that does not exist."""

    value = None


class _Unknown:
    """Stands for words that cannot be read: they always differ."""

    @property
    def value(self) -> object:
        return object()


_watch = _Watch()
read_mark = partial(attrgetter("python.value", "instance.gauss_next", "numpy.value"), _watch)
"""Returns the words of the global generators, to compare with `GlobalStates.mark`."""


def global_states() -> GlobalStates:
    """Return the present states of `random` and `numpy.random`.

    The same object as long as the words have not changed, so that nothing is read while nothing
    is drawn. The words miss one thing: the second of a pair of Gaussian draws from `numpy.random`.
    """
    watch = _watch
    numpy_random = watch.numpy_random
    if numpy_random is None or numpy_random._bit_generator is not watch.bit_generator:
        watch.find_numpy()
    mark = read_mark()
    if mark != watch.latest.mark:
        watch.latest = GlobalStates(mark)
    return watch.latest


def present_states(exact: bool) -> GlobalStates:
    """Return the present states of `random` and `numpy.random`.

    Args:
        exact: read them, whatever the words say.
    """
    return GlobalStates(None) if exact else global_states()


class Draws:
    """Generator states before a piece of code that draws from them.

    Args:
        states: the global ones.
        generators: `torch.Generator`, `random.Random` and numpy generator objects.
    """

    __slots__ = ("_generators", "_states")

    def __init__(self, states: GlobalStates, generators: Iterable[Any] = ()) -> None:
        self._states = states
        self._generators = [(generator, _get_state(generator)) for generator in generators]

    def happened(self, exact: bool) -> bool:
        """Whether anything may have been drawn since.

        Args:
            exact: see every draw from `numpy.random`; the states were read in the same way.
        """
        if self._generators:
            return True
        now = present_states(exact)
        return not now.same(self._states) if exact else now is not self._states

    def from_numpy(self) -> bool:
        """Whether `numpy.random` was drawn from since."""
        return not self._states.same_numpy(GlobalStates(None))

    def rewind(self) -> Draws:
        """Set every generator to the state it had; return the present states, to be set again."""
        present = Draws(GlobalStates(None), [generator for generator, _ in self._generators])
        if not present._states.same(self._states):
            self._states.set()
        for generator, state in self._generators:
            _set_state(generator, state)
        return present


def is_generator(value: Any) -> bool:
    """Whether `value` is a generator object whose state can be read and set."""
    if isinstance(value, torch.Generator | random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy_random = sys.modules.get("numpy.random")
    return numpy_random is not None and isinstance(
        value, (numpy_random.Generator, numpy_random.RandomState, numpy_random.BitGenerator)
    )


def is_global_generator(value: Any) -> bool:
    """Whether `value` is behind the functions of `random` or `numpy.random`."""
    numpy = sys.modules.get("numpy.random.mtrand")
    return value is random._inst or (numpy is not None and value is numpy._rand)


def _get_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    if hasattr(generator, "get_state"):
        return generator.get_state(legacy=False)
    return generator.state


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    elif hasattr(generator, "set_state"):
        generator.set_state(state)
    else:
        generator.state = state
