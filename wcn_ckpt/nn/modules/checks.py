"""Checks of the arguments that modules are built with."""

from __future__ import annotations

import math
from numbers import Real

from wcn_ckpt.nn.modules.sparse_conv import check_positive

__all__ = [
    "check_count",
    "check_heads",
    "check_number",
    "check_positive",
    "check_probability",
    "check_ratio",
    "hidden_width",
]


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


def check_heads(channels: int, num_heads: int, name: str = "channels") -> None:
    """Check that channels can be shared evenly among heads.

    Raises:
        TypeError: a number is no integer.
        ValueError: a number is not positive, or the channels are not divisible.
    """
    check_positive(channels, name)
    check_positive(num_heads, "num_heads")
    if channels % num_heads:
        raise ValueError(
            f"{name}={channels} must be divisible by num_heads={num_heads}; "
            f"{num_heads} heads of equal width need a multiple of {num_heads} channels"
        )


def check_count(value: int, name: str) -> None:
    """Check a number of things of which there may be none.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def hidden_width(channels: int, mlp_ratio: float) -> int:
    """Return the width `int(channels * mlp_ratio)` inside a feed-forward network.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: a number is not positive and finite, or the width is below 1.
    """
    check_positive(channels, "channels")
    width = int(channels * check_ratio(mlp_ratio, "mlp_ratio"))
    if width < 1:
        raise ValueError(
            f"mlp_ratio={mlp_ratio} leaves no channel of {channels} inside the feed-forward "
            "network; use a larger ratio"
        )
    return width
