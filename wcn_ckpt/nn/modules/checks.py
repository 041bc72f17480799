"""Checks of the arguments that modules are built with."""

from __future__ import annotations

import math
from numbers import Real

from wcn_ckpt.nn.modules.sparse_conv import check_positive

__all__ = ["check_number", "check_positive", "check_probability", "check_ratio"]


def check_probability(value: float, name: str) -> float:
    """Return a probability.

    Raises:
        TypeError: it is no number.
        ValueError: it is not between 0 and 1.
    """
    check_number(value, name)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be a probability between 0 and 1, got {value!r}")
    return float(value)


def check_ratio(value: float, name: str) -> float:
    """Return a positive finite number.

    Raises:
        TypeError: it is no number.
        ValueError: it is not positive and finite.
    """
    check_number(value, name)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)


def check_number(value: float, name: str) -> None:
    """Check that a value is a number.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
