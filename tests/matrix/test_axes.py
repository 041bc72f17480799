from __future__ import annotations

import pytest

from matrix.axes import AXES, Axis, axis_named
from matrix.values import value_text


def test_every_value_can_be_typed() -> None:
    for axis in AXES:
        for value in axis.values:
            assert axis.parse(value_text(value)) is value or axis.parse(value_text(value)) == value


def test_a_wrong_value_is_named_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'bn_momentum' has no value '0.2'.*0.1, 1.0, none"):
        axis_named("bn_momentum").parse("0.2")


def test_a_wrong_axis_is_named_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"no axis 'momentum'.*bn_momentum.*accumulation"):
        axis_named("momentum")


def test_a_default_must_be_a_value() -> None:
    with pytest.raises(ValueError, match="default 3 is not one of"):
        Axis("steps", (1, 2), default=3, doc="")


def test_values_must_differ_in_text() -> None:
    with pytest.raises(ValueError, match="same text"):
        Axis("flag", (True, "on"), default=True, doc="")
