"""Rows of a matrix that hold given values, under constraints."""

from __future__ import annotations

from collections.abc import Mapping

from matrix.constraints import Constraint, exclusion
from matrix.values import Value

Factors = Mapping[str, tuple[Value, ...]]
"""Factor name -> the values it may take."""

Row = dict[str, Value]
"""Factor name -> one of its values."""


def completed(
    chosen: Mapping[str, Value], factors: Factors, constraints: tuple[Constraint, ...]
) -> Row | None:
    """Return an allowed row that holds some values.

    The other factors start at their first value. Where a constraint excludes that row, any allowed
    row has a value outside the constraint for one of its free factors, so each of those is tried in
    turn: the search is complete, and short where first values are mostly allowed.

    Args:
        chosen: Values that the row must hold.
        factors: The factors, with ``chosen``'s among them.
        constraints: What is left out.

    Returns:
        The row, in the order of ``factors``; None where there is none.
    """
    row = {name: chosen.get(name, values[0]) for name, values in factors.items()}
    rule = exclusion(row, constraints)
    if rule is None:
        return row
    for name, excluded in rule.when.items():
        if name in chosen or name not in factors:
            continue
        for value in factors[name]:
            if value not in excluded:
                found = completed({**chosen, name: value}, factors, constraints)
                if found is not None:
                    return found
    return None
