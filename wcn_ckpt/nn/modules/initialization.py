"""Initial values that blocks share."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def zero_module(module: M) -> M:
    """Set all parameters of a module to zero and return it."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module
