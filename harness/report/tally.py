"""Counts of a run's rows: by outcome, and by axis value and subject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from harness.row import OUTCOMES, Row
from matrix.axes import AXES
from matrix.values import value_text


class Cell(NamedTuple):
    """How many cases of one cell went as expected."""

    passed: int
    total: int

    @property
    def text(self) -> str:
        """For example ``12 ok`` or ``3/12 fail``; empty where there is no case."""
        if not self.total:
            return ""
        failed = self.total - self.passed
        return f"{failed}/{self.total} fail" if failed else f"{self.total} ok"


class Table(NamedTuple):
    """Axis values down, subjects across."""

    subjects: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Cell, ...]], ...]
    """``axis=value`` and one cell per subject."""


def outcome_counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return outcome -> number of rows, for the outcomes that occur, in fixed order."""
    counts = Counter(row.outcome for row in rows)
    return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}


def expected_reasons(rows: Sequence[Row]) -> dict[str, int]:
    """Return reason -> number of cases, for the cases that differ as expected."""
    return dict(
        Counter(
            row.findings[0].cause
            for row in rows
            if row.outcome == "expected_difference" and row.findings
        )
    )


def tabulate(rows: Sequence[Row]) -> Table:
    """Return the table of subjects and axis values.

    Args:
        rows: The rows of a run.

    Returns:
        One line for each axis value that occurs. Known values stand in the order of their axis,
        others behind them.
    """
    subjects = tuple(sorted({row.subject for row in rows}))
    values = axis_texts(rows)
    totals: Counter[tuple[str, str, str]] = Counter()
    passed: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        for axis, value in row.axes.items():
            key = (axis, value_text(value), row.subject)
            totals[key] += 1
            passed[key] += row.passed
    lines = tuple(
        (
            f"{axis}={text}",
            tuple(Cell(passed[axis, text, s], totals[axis, text, s]) for s in subjects),
        )
        for axis, texts in values.items()
        for text in texts
    )
    return Table(subjects, lines)


def axis_texts(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return axis -> texts of the values that occur.

    Known values stand in the order of their axis, others behind them.
    """
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in row.axes.items():
            seen.setdefault(name, {})[value_text(value)] = None
    order = {axis.name: [value_text(value) for value in axis.values] for axis in AXES}
    names = [*(name for name in order if name in seen), *(n for n in seen if n not in order)]
    return {
        name: [
            *(text for text in order.get(name, ()) if text in seen[name]),
            *(text for text in seen[name] if text not in order.get(name, ())),
        ]
        for name in names
    }


def summary_line(rows: Sequence[Row]) -> str:
    """Return for example ``16 cases: 15 equal, 1 differs``."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcome_counts(rows).items())
    return f"{len(rows)} {'case' if len(rows) == 1 else 'cases'}: {counts or 'nothing ran'}"
