"""States of random number generators that torch's checkpoint does not know.

Reading the whole state of a generator costs tens of microseconds, so it is read only when it has
changed. A mark of a few words tells: they are read in place, from the memory of the generator.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable
from typing import Any

import torch

_WORDS = 624
"""Words in the state of a Mersenne Twister, which is behind `random` and numpy's old API."""

_WORD_BYTES = ctypes.sizeof(ctypes.c_uint32)


class _Words:
    """Eight bytes of a generator that change with each draw and each new seed.

    CPython keeps the index of the next word in front of the words of `random`; numpy keeps it
    behind those of its Mersenne Twister. Both are read together with the word beside it.
    """

    def __init__(self) -> None:
        self.instance: Any = random._inst
        self.python: Any = _words_of(self.instance) if _layout_is_known() else None
        self.bit_generator: Any = None
        self.numpy: Any = None

    def find_numpy(self, bit_generator: Any) -> None:
        """Follow numpy to a bit generator that it has not had before."""
        self.bit_generator = bit_generator
        self.numpy = None
        if type(bit_generator).__name__ == "MT19937":
            address = bit_generator.ctypes.state_address + (_WORDS - 1) * _WORD_BYTES
            self.numpy = ctypes.c_uint64.from_address(address)


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
        self.numpy = None if numpy is None else numpy.get_state()

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
        a, b = self.numpy, other.numpy
        if a is None or b is None:
            return a is b
        return bool(a[0] == b[0] and a[2:] == b[2:] and (a[1] == b[1]).all())


_words = _Words()
_latest = [GlobalStates(None)]


def global_states() -> GlobalStates:
    """Return the present states of `random` and `numpy.random`.

    The same object as long as the words have not changed, so that nothing is read while nothing
    is drawn. The words miss one thing: the second of a pair of Gaussian draws from `numpy.random`.
    """
    words = _words
    numpy = None
    module = sys.modules.get("numpy.random.mtrand")
    if module is not None:
        if module._rand._bit_generator is not words.bit_generator:
            words.find_numpy(module._rand._bit_generator)
        numpy = object() if words.numpy is None else words.numpy.value
    python = object() if words.python is None else words.python.value
    mark = python, words.instance.gauss_next, numpy
    if mark != _latest[0].mark:
        _latest[0] = GlobalStates(mark)
    return _latest[0]


class Draws:
    """Generator states from which a piece of code may draw.

    Args:
        generators: generator objects besides the global ones.
        exact: see every draw from `numpy.random`, at the cost of reading its whole state.
    """

    __slots__ = ("_exact", "_generators", "_states")

    def __init__(self, generators: Iterable[Any], exact: bool) -> None:
        self._exact = exact
        self._states = GlobalStates(None) if exact else global_states()
        self._generators = [(g, _get_state(g)) for g in generators] if generators else []

    def happened(self) -> bool:
        """Whether anything may have been drawn since."""
        if self._exact:
            return bool(self._generators) or not self._states.same(GlobalStates(None))
        return bool(self._generators) or global_states() is not self._states

    def from_numpy(self) -> bool:
        """Whether `numpy.random` was drawn from since."""
        return not self._states.same_numpy(GlobalStates(None))

    def rewind(self) -> Draws:
        """Set every generator to the state it had; return the present states, to be set again."""
        present = Draws([generator for generator, _ in self._generators], exact=True)
        if not present._states.same(self._states):
            self._states.set()
        for generator, state in self._generators:
            _set_state(generator, state)
        return present


def is_generator(value: Any) -> bool:
    """Whether `value` is a generator object whose state can be read and set."""
    if isinstance(value, torch.Generator | random.Random):
        return True
    numpy_random = sys.modules.get("numpy.random")
    return numpy_random is not None and isinstance(
        value, (numpy_random.Generator, numpy_random.RandomState)
    )


def _get_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
