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
        rows: Allowed rows of some of the factors.
        names: The factors that they lack, in the order they are added. Whatever a row holds, their
            first values are allowed.
        factors: All factors.
        constraints: What is left out.

    Returns:
        The rows, and those that were added, in the order of ``factors``.
    """
    table = [dict(row) for row in rows]
    if not table:  # no row of the other factors is allowed
        return []
    known = [name for name in factors if name in table[0]]
    for name in names:
        partial = {factor: factors[factor] for factor in (*known, name)}
        missing = _pairs(name, known, partial, constraints)
        for row in table:
            row[name] = _best(row, name, factors[name], missing, constraints)
            missing -= _held(row, name)
        while missing:
            row = _row_for(name, min(missing, key=repr), missing, partial, constraints)
            table.append(row)
            missing -= _held(row, name)
        known.append(name)
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


def _best(
    row: Row,
    name: str,
    values: tuple[Value, ...],
    missing: set[_Pair],
    constraints: tuple[Constraint, ...],
) -> Value:
    """Return the allowed value that covers most; the first of several."""
    allowed = [v for v in values if exclusion({**row, name: v}, constraints) is None]
    return max(allowed, key=lambda value: len(missing & _held({**row, name: value}, name)))


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
    row = completed(chosen, factors, constraints)
    assert row is not None
    return row
