"""Axis values and the text a person types for them."""

from __future__ import annotations

import re
from collections.abc import Mapping

Value = str | float | int | bool | None
"""One value of an axis."""

Condition = Mapping[str, tuple[Value, ...]]
"""Axis name -> values; met when every named axis has one of its values."""

_TYPEABLE = re.compile(r"[A-Za-z0-9_.+-]+")


def value_text(value: Value) -> str:
    """Return the text of ``value`` as it stands in case ids and on the command line.

    Args:
        value: An axis value.

    Returns:
        ``on``/``off`` for booleans, ``none`` for None, the plain text of anything else.

    Raises:
        ValueError: If the text would need quotes in a shell or break a case id.
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value)
    if not _TYPEABLE.fullmatch(text):
        raise ValueError(
            f"{text!r} cannot stand in a case id; use only letters, digits and the signs _ . + -"
        )
    return text


def meets(values: Mapping[str, Value], condition: Condition) -> bool:
    """Tell whether ``values`` meets ``condition``; an axis absent from ``values`` never does."""
    for name, allowed in condition.items():  # millions of times for an array: no generator
        if name not in values or values[name] not in allowed:
            return False
    return True
