"""Tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.report.folding import fold

COLUMN_GAP = 3
"""Columns between the cells of a table."""
EDGES = 2
"""Columns beside the first and the last cell of a table on a terminal."""


def show_table(headings: Sequence[str], rows: Sequence[Sequence[Text]], console: Console) -> None:
    """Print a table; where a terminal is too narrow for it, each row as a list.

    Args:
        headings: One for each column.
        rows: Their cells; the first one names the row.
        console: Where to print.
    """
    columns = zip(headings, *([cell.plain for cell in row] for row in rows), strict=True)
    width = sum(max(map(len, column)) + COLUMN_GAP for column in columns) - COLUMN_GAP + EDGES
    if console.is_terminal and width > console.width:
        for first, *others in rows:
            console.print(first)
            for heading, cell in zip(headings[1:], others, strict=True):
                if cell.plain:
                    start = f"  {heading}: "
                    text = Text(fold(start + cell.plain, console.width))
                    text.stylize(cell.style, len(start))
                    console.print(text)
        return
    grid = bare_table(console)
    for heading in headings:
        grid.add_column(heading, no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    if width > console.width:  # what reads it there has no width of its own
        grid.width = width
    console.print(grid, crop=False)


def bare_table(console: Console) -> Table:
    """Return a table without lines between its cells; on a terminal its head is underlined."""
    return Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
