"""Bar charts of a report, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.row import Row


class Bar(NamedTuple):
    """One line of a chart."""

    label: str
    """What it is about."""
    widths: tuple[float, ...]
    """Lengths of its bars, in percent of the longest one of the chart."""
    text: str
    """Its values in words."""


class Chart(NamedTuple):
    """A bar chart."""

    title: str
    """What it shows."""
    doc: str
    """How to read it, in one line."""
    bars: tuple[Bar, ...]
    """Its lines."""


def bar_chart(title: str, doc: str, values: Mapping[str, tuple[tuple[float, ...], str]]) -> Chart:
    """Scale values to a chart.

    Args:
        title: What it shows.
        doc: How to read it.
        values: Label -> values, which are not negative, and their text.

    Returns:
        The chart.
    """
    longest = max((value for numbers, _ in values.values() for value in numbers), default=0.0)
    bars = tuple(
        Bar(
            label,
            tuple(round(100 * value / longest, 2) if longest else 0.0 for value in numbers),
            text,
        )
        for label, (numbers, text) in values.items()
    )
    return Chart(title, doc, bars)


def time_chart(rows: Sequence[Row]) -> Chart:
    """Chart the time of a run by subject, the one that took longest first."""
    seconds: dict[str, list[float]] = {}
    for row in rows:
        seconds.setdefault(row.subject, []).append(row.seconds)
    ordered = sorted(seconds.items(), key=lambda item: -sum(item[1]))
    return bar_chart(
        "Time by subject",
        "Wall time of its cases, arms and comparisons included: sum, number and mean.",
        {
            subject: (
                (sum(times),),
                f"{sum(times):.2f} s: {len(times)} of {1000 * sum(times) / len(times):.0f} ms",
            )
            for subject, times in ordered
        },
    )
