"""What a run prints: progress while it lasts, then a table and the findings."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from harness.baseline import Known
from harness.findings import Finding, Scalar
from harness.report.escape import plain
from harness.report.folding import FoldingConsole, fold
from harness.report.tables import COLUMN_GAP, EDGES, bare_table
from harness.report.tally import Table as Tally
from harness.report.tally import expected_reasons, summary_line, tabulate
from harness.row import Row

_PLAIN_SECONDS = 5.0
_PLAIN_WIDTH = 160
_MOST_CASES = 5
_MOST_CAUSES = 3


def make_console() -> Console:
    """Return the console of the command line: text is never cut, and folded on a terminal alone."""
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    return FoldingConsole(highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)


def show_progress(rows: Iterable[Row], total: int, console: Console) -> Iterator[Row]:
    """Pass rows on, showing cases done, rate and time left.

    Args:
        rows: The rows, as they come.
        total: How many there will be.
        console: Where to print: a live bar on a terminal, a line now and then elsewhere.

    Yields:
        The rows.
    """
    if not console.is_terminal:
        yield from _plain_progress(rows, total, console)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.1f} cases/s"),
        TextColumn("{task.fields[failing]} not ok"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("cases", total=total, rate=0.0, failing=0)
        pace = _Pace()
        for row in rows:
            pace.count(row)
            progress.update(task, advance=1, rate=pace.rate, failing=pace.failing)
            yield row


def show_result(rows: Sequence[Row], console: Console) -> None:
    """Print the table by axis value and subject, and the findings.

    Args:
        rows: The rows of the run.
        console: Where to print.
    """
    table = tabulate(rows)
    room = _room(table, console)
    for first, last in _column_groups(table, room):
        console.print(_grid(table, first, last, room, console), crop=False)
    failing = [row for row in rows if not row.passed]
    for row in failing[:_MOST_CASES]:
        show_findings(row, console)
    if len(failing) > _MOST_CASES:
        rest = len(failing) - _MOST_CASES
        console.print(f"... and {rest} more cases that are not as expected: see the report")
    for reason, count in expected_reasons(rows).items():
        console.print(f"expected: {count} {'case' if count == 1 else 'cases'}: {plain(reason)}")
    console.print(summary_line(rows))


def _room(table: Tally, console: Console) -> int:
    """Return how many columns of the terminal are left beside the labels."""
    labels = max((len(label) for label, _ in table.lines), default=0)
    return console.width - labels - (EDGES if console.is_terminal else 0)


def _column_groups(table: Tally, left: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of subjects whose columns fit beside each other."""
    first, room = 0, left
    for number, subject in enumerate(table.subjects):
        texts = (cells[number].text for _, cells in table.lines)
        wanted = COLUMN_GAP + max(len(subject), *map(len, texts))
        if wanted > room and number > first:
            yield first, number
            first, room = number, left
        room -= wanted
    yield first, len(table.subjects)


def _grid(table: Tally, first: int, last: int, room: int, console: Console) -> Table:
    grid = bare_table(console)
    for heading in ("cases", *table.subjects[first:last]):
        lines = textwrap.wrap(plain(heading), max(room - COLUMN_GAP, 1))
        grid.add_column(Text("\n".join(lines)), no_wrap=True)
    for label, cells in table.lines:
        shown = cells[first:last]
        texts = [Text(cell.text, style="red" if cell.passed < cell.total else "") for cell in shown]
        grid.add_row(Text(plain(label)), *texts)
    return grid


def show_vanished(vanished: Sequence[Known], console: Console) -> None:
    """Print the listed findings that no case shows any more.

    Args:
        vanished: The findings.
        console: Where to print.
    """
    for known in vanished:
        console.print(f"no longer found, take it off the baseline: {plain(known.text)}")


def show_findings(
    row: Row, console: Console, *, everything: bool = False, smallest: bool = False
) -> None:
    """Print the findings of one case.

    Args:
        row: The case's row.
        console: Where to print.
        everything: Print all findings, with tracebacks and stacks, not one for each cause.
        smallest: Whether the case is known to be as small as it can be.
    """
    heading = f"{row.outcome} {plain(row.case)}"
    text = Text(fold(heading, console.width) if console.is_terminal else heading)
    text.stylize("green" if row.passed else "bold red", 0, len(row.outcome))
    console.print(text)
    shown = list(row.findings)
    if not everything:
        shown = list({finding.cause: finding for finding in reversed(shown)}.values())[::-1]
        shown = shown[:_MOST_CAUSES]
    for finding in shown:
        console.print(finding_text(finding, everything=everything))
    if everything and row.tolerances:
        console.print("  the ordinary arm differs from itself, so up to these differences pass:")
        for path, value in row.tolerances.items():
            console.print(f"    {plain(path)}: {value:.6g}")
    if len(row.findings) > len(shown):
        console.print(f"  ... and {len(row.findings) - len(shown)} more findings")
    if not row.passed:
        console.print(f"  replay: {plain(row.replay_command)}")
        if row.shrink_command and not smallest:
            console.print(f"  shrink: {plain(row.shrink_command)}")


def finding_text(finding: Finding, *, everything: bool = False) -> str:
    """Return a finding as indented lines: what was seen, where it came about, cause, remedy."""
    got = _text(finding.got)
    if not everything:
        got = got.partition("\n")[0]
    gap = ""
    if finding.max_abs is not None:
        gap = (
            f" · largest difference {finding.max_abs:.6g}, "
            f"allowed {finding.tolerance:.6g} ({finding.tolerance_source})"
        )
    where = f"    where: {finding.origin}\n" if finding.origin else ""
    return plain(
        f"  rank {finding.rank} · {finding.point} · {finding.path} · "
        f"expected {_text(finding.expected)} · got {got}{gap}\n"
        f"{where}"
        f"    cause: {finding.cause}\n"
        f"    remedy: {finding.remedy}"
    )


def _text(value: Scalar) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


class _Pace:
    def __init__(self) -> None:
        self.done = 0
        self.failing = 0
        self._start = 0.0

    def count(self, row: Row) -> None:
        # The first case waits for the ranks to start, so the rate is counted from its end.
        if not self.done:
            self._start = time.monotonic()
        self.done += 1
        self.failing += not row.passed

    @property
    def rate(self) -> float:
        elapsed = time.monotonic() - self._start
        return (self.done - 1) / elapsed if self.done > 1 and elapsed > 0 else 0.0


def _plain_progress(rows: Iterable[Row], total: int, console: Console) -> Iterator[Row]:
    pace = _Pace()
    last = time.monotonic()
    for row in rows:
        pace.count(row)
        now = time.monotonic()
        if pace.done == 1 or now - last >= _PLAIN_SECONDS:
            last = now
            left = f", {(total - pace.done) / pace.rate:.0f} s left" if pace.rate else ""
            console.print(
                f"{pace.done}/{total} cases, {pace.failing} not ok, {pace.rate:.1f} cases/s{left}",
                highlight=False,
            )
        yield row
