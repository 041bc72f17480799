"""The matrix as pairs of axis values: counts, the worst cells, and the geometry of the picture."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from harness.report.tally import Cell, axis_texts
from harness.row import Row
from matrix.values import value_text

_CELL = 15
_GAP = 5
_LABELS = 245


class Pair(NamedTuple):
    """One cell of the matrix: a subject and a pair of axis values."""

    subject: str
    first: str
    """``axis=value``."""
    second: str
    """``axis=value`` of a later axis."""


class Square(NamedTuple):
    """One cell of the picture."""

    x: int
    y: int
    style: str
    """``ok``, ``empty`` or ``bad1`` (few of its cases fail) to ``bad4`` (all do)."""
    title: str
    """What is shown when the pointer rests on it."""


class Label(NamedTuple):
    """One ``axis=value`` at the edge of the picture."""

    position: int
    text: str


class Picture(NamedTuple):
    """A lower triangle of squares, axis values down and across."""

    title: str
    failing: int
    total: int
    size: int
    labels: tuple[Label, ...]
    squares: tuple[Square, ...]
    margin: int = _LABELS
    cell: int = _CELL


def count_pairs(rows: Sequence[Row]) -> dict[Pair, Cell]:
    """Count the cases of each subject and pair of values of two axes.

    Args:
        rows: The rows of a run.

    Returns:
        The counts of the pairs that occur. Axes with one value in these rows are left out.
    """
    order = [name for name, texts in axis_texts(rows).items() if len(texts) > 1]
    totals: Counter[Pair] = Counter()
    passed: Counter[Pair] = Counter()
    for row in rows:
        texts = [f"{name}={value_text(row.axes[name])}" for name in order if name in row.axes]
        for first, second in itertools.combinations(texts, 2):
            pair = Pair(row.subject, first, second)
            totals[pair] += 1
            passed[pair] += row.passed
    return {pair: Cell(passed[pair], total) for pair, total in totals.items()}


def worst_pairs(rows: Sequence[Row], most: int) -> list[tuple[Pair, Cell]]:
    """Return the cells with failing cases: the largest share of them first, then most of them."""
    pairs: dict[Pair, Cell] = {}
    for subject in sorted({row.subject for row in rows}):
        pairs |= count_pairs([row for row in rows if row.subject == subject])
    failing = [(pair, cell) for pair, cell in pairs.items() if cell.passed < cell.total]
    failing.sort(key=lambda item: (item[1].passed / item[1].total, item[1].passed - item[1].total))
    return failing[:most]


def draw(rows: Sequence[Row], title: str) -> Picture:
    """Lay out the picture of some rows.

    Args:
        rows: The rows, of one subject or of several.
        title: What they are.

    Returns:
        The picture.
    """
    counts: Counter[tuple[str, str]] = Counter()
    passed: Counter[tuple[str, str]] = Counter()
    for pair, cell in count_pairs(rows).items():
        counts[pair.first, pair.second] += cell.total
        passed[pair.first, pair.second] += cell.passed
    labels: list[Label] = []
    axes: list[str] = []
    position = 0
    for name, texts in axis_texts(rows).items():
        if len(texts) == 1:
            continue
        for text in texts:
            labels.append(Label(position, f"{name}={text}"))
            axes.append(name)
            position += _CELL
        position += _GAP
    squares = [
        _square(labels[i], labels[j], Cell(passed[key], counts[key]))
        for i, j in itertools.combinations(range(len(labels)), 2)
        if axes[i] != axes[j] and (key := (labels[i].text, labels[j].text))
    ]
    failing = sum(not row.passed for row in rows)
    return Picture(title, failing, len(rows), position, tuple(labels), tuple(squares))


def _square(across: Label, down: Label, cell: Cell) -> Square:
    title = f"{across.text}, {down.text}: {cell.text or 'no case'}"
    return Square(across.position, down.position, _style(cell), title)


def _style(cell: Cell) -> str:
    if not cell.total:
        return "empty"
    if cell.passed == cell.total:
        return "ok"
    return f"bad{1 + int(3 * (cell.total - cell.passed) / cell.total)}"
