"""The state of torch's CPU generator, copied only when it has moved.

Copying it takes longer than most of what a boundary without state does besides. Whether it has
moved is told by a few words, read in place: those that every draw and every new seed changes.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ENGINE = struct.Struct("<Qi?3xI3I")
"""How an engine (`at::mt19937`) begins: seed, words left, whether seeded, next word, words."""

_SEED_BYTES = 8

_NORMALS = struct.Struct("<f?3xd?7x")
"""What follows an engine in its generator: the second of a pair of normal draws, if there is one,
in single and in double precision."""

_NORMALS_AT = 2520
"""Bytes from an engine to the normal draws; between them are the rest of its 624 words."""

_COPIED_STATE = struct.Struct("<QiiQ3Q4976xd8xi4xf?3x")
"""What `torch.Generator.get_state` returns: the same, wider, and two more numbers."""

_SEARCHED = 256
"""Bytes of a generator in which its engine must begin."""


class CpuState(NamedTuple):
    """A state of the CPU generator.

    Attributes:
        mark: a few words of it.
        state: all of it: 5056 values, uint8.
    """

    mark: Any
    state: Tensor


class CpuGenerator:
    """A CPU generator whose state is looked at again and again.

    Args:
        generator: the generator.

    Attributes:
        readable: whether its words can be read in place; if not, its state is copied each time.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        offset = _offset_of_engine()
        self.readable = offset is not None
        self._engine: Callable[[], Any] = object
        self._normals: Callable[[], Any] = object
        if offset is not None:
            engine = _address(generator) + offset
            self._engine = _reader(engine + _SEED_BYTES, _ENGINE.size - _SEED_BYTES)
            self._normals = _reader(engine + _NORMALS_AT, _NORMALS.size)
        self._latest = CpuState(None, generator.get_state())

    def present(self) -> CpuState:
        """Return the present state: the same object as long as it has not moved."""
        latest = self._latest
        mark = self._engine(), self._normals()
        if mark != latest.mark:
            latest = self._latest = CpuState(mark, self._generator.get_state())
        return latest

    def set(self, wanted: CpuState) -> None:
        """Set the generator to a state that it had, unless it has it."""
        if (self._engine(), self._normals()) != wanted.mark:
            self._generator.set_state(wanted.state)
            self._latest = wanted


def _address(generator: torch.Generator) -> int:
    address: int = generator._cdata  # type: ignore[attr-defined]
    return address


def _reader(address: int, count: int) -> Callable[[], bytes]:
    return memoryview((ctypes.c_ubyte * count).from_address(address)).tobytes


def _offset_of_engine() -> int | None:
    """Bytes from the beginning of a generator to its engine; None where the layout is another."""
    if sys.byteorder != "little" or not hasattr(torch.Generator, "_cdata"):
        return None
    generator = torch.Generator().manual_seed(0x5EED_0F_A_9E47E)
    seed = generator.initial_seed().to_bytes(_SEED_BYTES, "little")
    offset = ctypes.string_at(_address(generator), _SEARCHED).find(seed)
    if offset < 0:
        return None
    for dtype in (torch.float32, torch.float64, torch.float64):
        for draw in (torch.rand, torch.randn):
            draw(1, generator=generator, dtype=dtype, device="cpu")
            if _read(_address(generator) + offset) != _copied(generator):
                return None
    return offset


def _read(engine: int) -> list[Any]:
    """The fields of a generator, from the memory of its engine."""
    fields = _ENGINE.unpack(ctypes.string_at(engine, _ENGINE.size))
    single, has_single, double, has_double = _NORMALS.unpack(
        ctypes.string_at(engine + _NORMALS_AT, _NORMALS.size)
    )
    return [*fields, has_single and single, has_double and double]


def _copied(generator: torch.Generator) -> list[Any]:
    """The same fields, from the state that the generator returns."""
    state = generator.get_state()
    fields = _COPIED_STATE.unpack(ctypes.string_at(state.data_ptr(), state.numel()))
    *fields_of_engine, double, has_double, single, has_single = fields
    return [*fields_of_engine, has_single and single, has_double and double]


cpu_generator = CpuGenerator(torch.default_generator)
"""The default one, from which everything draws that is not given another."""
