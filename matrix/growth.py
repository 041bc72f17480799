"""Grow a covering array by one factor at a time, so that every pair with it is covered.

The algorithm is IPOG's for pairs: a value of the new factor for each row that is there, then rows
for the pairs that are left. Lei et al., "IPOG: A General Strategy for T-Way Software Testing",
ECBS 2007.
"""

from __future__ import annotations

from collections.abc import Iterable

from matrix.completion import Factors, Row, completed
from matrix.constraints import Constraint, exclusion
from matrix.values import Value

_Pair = tuple[Value, str, Value]
"""A value of the new factor, another factor, and a value of that."""


def grown(
    rows: Iterable[Row], names: Iterable[str], factors: Factors, constraints: tuple[Constraint, ...]
) -> list[Row]:
    """Return rows with more factors, which hold every allowed pair of values that has one of them.

    Args:
        rows: Allowed rows of some of the factors; those that no allowed row holds are left out.
        names: The factors that they lack, in the order they are added.
        factors: All factors.
        constraints: What is left out.

    Returns:
        The rows, and those that were added, in the order of ``factors``.
    """
    every = [dict(row) for row in rows]
    table = [row for row in every if completed(row, factors, constraints) is not None]
    if not table:  # no row of the other factors is allowed
        return []
    given = [name for name in factors if name in table[0]]
    known = list(given)
    undone = len(table) < len(every)
    for name in names:
        partial = {factor: factors[factor] for factor in (*known, name)}
        missing = _pairs(name, known, partial, constraints)
        for row in table:
            value = _best(row, name, factors[name], missing, constraints)
            if value is None:  # what was added before leaves none: that is chosen anew
                undone = True
                row.update(_completed({n: row[n] for n in given}, partial, constraints))
            else:
                row[name] = value[0]
            missing -= _held(row, name)
        _add_rows(table, name, missing, partial, constraints)
        known.append(name)
    if undone:
        for name in known:
            missing = _pairs(name, [n for n in known if n != name], factors, constraints)
            missing = missing.difference(*(_held(row, name) for row in table))
            _add_rows(table, name, missing, factors, constraints)
    return [{name: row[name] for name in factors} for row in table]


def _pairs(
    name: str, known: list[str], factors: Factors, constraints: tuple[Constraint, ...]
) -> set[_Pair]:
    return {
        (value, other, others)
        for value in factors[name]
        for other in known
        for others in factors[other]
        if completed({name: value, other: others}, factors, constraints) is not None
    }


def _held(row: Row, name: str) -> set[_Pair]:
    return {(row[name], other, value) for other, value in row.items() if other != name}


def _add_rows(
    table: list[Row],
    name: str,
    missing: set[_Pair],
    factors: Factors,
    constraints: tuple[Constraint, ...],
) -> None:
    """Add rows to a table until none of the missing pairs is missing."""
    while missing:
        row = _row_for(name, min(missing, key=repr), missing, factors, constraints)
        table.append(row)
        missing -= _held(row, name)


def _best(
    row: Row,
    name: str,
    values: tuple[Value, ...],
    missing: set[_Pair],
    constraints: tuple[Constraint, ...],
) -> tuple[Value] | None:
    """Return the allowed value that covers most, the first of several; None if none is allowed."""
    allowed = [(v,) for v in values if exclusion({**row, name: v}, constraints) is None]
    return max(
        allowed, key=lambda value: len(missing & _held({**row, name: value[0]}, name)), default=None
    )


def _row_for(
    name: str,
    pair: _Pair,
    missing: set[_Pair],
    factors: Factors,
    constraints: tuple[Constraint, ...],
) -> Row:
    """Return a row with a pair, and with as many other missing ones as fit in."""
    value, other, others = pair
    chosen: Row = {name: value, other: others}
    for own, third, thirds in sorted(missing, key=repr):
        if own == value and third not in chosen:
            with_it = {**chosen, third: thirds}
            if completed(with_it, factors, constraints) is not None:
                chosen = with_it
    return _completed(chosen, factors, constraints)


def _completed(chosen: Row, factors: Factors, constraints: tuple[Constraint, ...]) -> Row:
    row = completed(chosen, factors, constraints)
    assert row is not None
    return row
