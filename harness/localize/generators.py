"""The random generators that a module can draw from, and their states."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from harness.localize.values import vars_of

TORCH = "torch's CPU generator"
CUDA = "torch's CUDA generator"
PYTHON = "Python's random"
NUMPY = "NumPy's global generator"

States = dict[str, int]
"""Name of a generator -> digest of its state; comparable within one process."""


def owned_generators(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Any]:
    """Return the generators that modules keep as attributes, also in lists and dictionaries.

    Args:
        modules: Path and module.

    Returns:
        A name that a person can read, such as ``torch.Generator 'block.generator'`` -> generator.
    """
    found: dict[str, Any] = {}
    for path, module in modules:
        for name, value in list(vars_of(module).items()):
            place = f"{path}.{name}" if path else name
            found.update(generators_in(value, place))
    return found


def generators_in(value: Any, place: str) -> dict[str, Any]:
    """Return the generators in a value, by readable name.

    Args:
        value: A generator, or a list, tuple or dictionary that may hold some.
        place: Where it is.
    """
    return {
        f"{_kind(generator)} {where!r}": generator for where, generator in _walk(value, place, 3)
    }


def generator_states(owned: Mapping[str, Any]) -> States:
    """Digest the states of all global generators in use and of some others.

    Args:
        owned: Name -> generator, as returned by :func:`owned_generators`.
    """
    states = {TORCH: hash(torch.get_rng_state().numpy().tobytes())}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        states[CUDA] = hash(
            b"".join(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all())
        )
    states[PYTHON] = hash(random.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states[NUMPY] = hash((name, keys.tobytes(), *rest))
    return states | {name: _state(generator) for name, generator in owned.items()}


def _walk(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    if _is_generator(value):
        yield place, value
    elif depth and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _walk(item, f"{place}[{index}]", depth - 1)
    elif depth and isinstance(value, dict):
        for key, item in list(value.items()):
            yield from _walk(item, f"{place}[{key!r}]", depth - 1)


def _is_generator(value: Any) -> bool:
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        value, (numpy.random.Generator, numpy.random.RandomState)
    )


def _kind(generator: Any) -> str:
    module = "torch" if isinstance(generator, torch.Generator) else type(generator).__module__
    return f"{module.partition('.')[0].lstrip('_')}.{type(generator).__name__}"


def _state(generator: Any) -> int:
    if isinstance(generator, torch.Generator):
        return hash(generator.get_state().numpy().tobytes())
    if isinstance(generator, random.Random):
        return hash(generator.getstate())
    if hasattr(generator, "bit_generator"):
        return hash(repr(generator.bit_generator.state))
    name, keys, *rest = generator.get_state()
    return hash((name, keys.tobytes(), *rest))
