"""The report of a run as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.baseline import Known
from harness.report.pairs import Picture, draw, worst_pairs
from harness.report.tally import expected_reasons, summary_line, tabulate
from harness.row import Row

PAGE_FILE = "report.html"
_MOST_CELLS = 15
_MOST_DETAILED = 20
_MOST_FINDINGS = 6


def write_page(
    folder: Path, rows: Sequence[Row], facts: Mapping[str, Any], vanished: Sequence[Known] = ()
) -> Path:
    """Write ``report.html``.

    Failing cells come first, beside the matrix as a picture; then findings, each case with the
    command that replays it; then a picture for each subject, failing ones first.

    Args:
        folder: The results folder.
        rows: The rows of the run.
        facts: What was asked and what it covers, name -> text.
        vanished: Known findings that no case shows any more.

    Returns:
        Where it was written.
    """
    environment = Environment(
        loader=PackageLoader("harness.report", "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    lines = {name: str(value).splitlines() for name, value in facts.items()}
    failing = [row for row in rows if not row.passed]
    text = environment.get_template("page.html.j2").render(
        headline=summary_line(rows),
        facts=lines,
        table=tabulate(rows),
        failing=failing[:_MOST_DETAILED],
        rest=failing[_MOST_DETAILED:],
        most_findings=_MOST_FINDINGS,
        worst=worst_pairs(rows, _MOST_CELLS),
        expected=expected_reasons(rows),
        vanished=vanished,
        whole=draw(rows, "all subjects"),
        pictures=_pictures(rows),
        seconds=sum(row.seconds for row in rows),
    )
    path = folder / PAGE_FILE
    path.write_text(text, encoding="utf-8")
    return path


def _pictures(rows: Sequence[Row]) -> list[Picture]:
    subjects = sorted({row.subject for row in rows})
    pictures = [draw([row for row in rows if row.subject == name], name) for name in subjects]
    return sorted(pictures, key=lambda picture: -picture.failing / picture.total)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
