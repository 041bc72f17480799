"""Which combinations of values are no case, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from matrix.values import Condition, Value, meets, value_text


@dataclass(frozen=True)
class Constraint:
    """An exclusion, with its reason."""

    when: Condition = field(hash=False)
    """The combinations that are left out. ``subject`` may be named like an axis."""
    kind: Literal["inapplicable", "raises"]
    """``inapplicable``: the option does not exist there, so the step is the same step as another
    case's. ``raises``: the ordinary arm itself raises there."""
    reason: str
    """Why, in one sentence."""

    @property
    def text(self) -> str:
        """The condition as a person types it: ``wrapper=none,broadcast_buffers=off``."""
        return ",".join(
            f"{name}={'|'.join(value_text(value) for value in values)}"
            for name, values in self.when.items()
        )


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        when={"wrapper": ("none",), "broadcast_buffers": (False,)},
        kind="inapplicable",
        reason="buffer broadcast is an option of DDP; without DDP there is nothing to switch off",
    ),
)
"""Every exclusion of the matrix."""


def exclusion(
    cell: Mapping[str, Value], constraints: tuple[Constraint, ...] = CONSTRAINTS
) -> Constraint | None:
    """Return the first constraint that excludes a cell.

    Args:
        cell: Axis name -> value, and ``subject`` -> name. May be partial: a constraint applies
            once all the axes it names are there.
        constraints: The constraints to try.

    Returns:
        The constraint, or None where the cell is allowed.
    """
    return next((rule for rule in constraints if meets(cell, rule.when)), None)
