"""Dropout and its relatives in a model that nobody here wrote: found, and switched off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

_PROBABILITY = re.compile(
    r"(^|_)(p?drop(out)?(path)?|layer_?drop)(_?(p|prob|rate|ratio))?$|_drop(_prob|_rate|out)?$"
)

_DROPPING = re.compile(r"Drop(out|Path|Block)|StochasticDepth")
"""Names of classes that other libraries have for it."""


def draws(module: nn.Module) -> bool:
    """Tell whether a model drops anything at random, as far as its attributes say."""
    return any(True for _ in _probabilities(module))


def dropout(module: nn.Module, value: str) -> None:
    """Leave a model as it is built, or set every probability of dropping something to 0.

    Args:
        module: The model.
        value: ``on`` leaves it.
    """
    if value == "on":
        return
    for holder, name in list(_probabilities(module)):
        setattr(holder, name, 0.0)


def _probabilities(module: nn.Module) -> Iterator[tuple[Any, str]]:
    """Yield the attributes of submodules, and of their configurations, that are probabilities."""
    seen: set[int] = set()
    for child in module.modules():
        if _drops(child):
            yield child, "p"
        for name, value in list(vars(child).items()):
            if _is_probability(name, value):
                yield child, name
        config = vars(child).get("config")
        if config is not None and id(config) not in seen and hasattr(config, "__dict__"):
            seen.add(id(config))
            for name, value in list(vars(config).items()):
                if _is_probability(name, value):
                    yield config, name


def _drops(module: nn.Module) -> bool:
    """Tell whether a module drops things with the probability ``p``."""
    if not (isinstance(module, _DropoutNd) or _DROPPING.search(type(module).__name__)):
        return False
    p = getattr(module, "p", None)
    return isinstance(p, int | float) and 0 < p <= 1


def _is_probability(name: str, value: Any) -> bool:
    return isinstance(value, float) and 0.0 < value <= 1.0 and bool(_PROBABILITY.search(name))
