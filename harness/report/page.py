"""The report of a run as HTML pages that need nothing else: one of the run, one of each finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.baseline import Known
from harness.checklist.points import Checklist
from harness.report.charts import Chart, time_chart
from harness.report.escape import plain
from harness.report.groups import Group, group_rows
from harness.report.pairs import Picture, draw, worst_pairs
from harness.report.tally import expected_reasons, outcome_counts, summary_line, tabulate
from harness.row import Row
from matrix.axes import AXES
from matrix.values import value_text

PAGE_FILE = "report.html"
_FINDING_PAGES = "finding-*.html"
_MOST_CELLS = 15
_MOST_DETAILED = 20
_MOST_FINDINGS = 6
_MOST_ROWS_SHOWN = 200


def write_page(
    folder: Path,
    rows: Sequence[Row],
    facts: Mapping[str, Any],
    vanished: Sequence[Known] = (),
    charts: Sequence[Chart] = (),
    checklists: Sequence[Checklist] = (),
) -> Path:
    """Write ``report.html``, and ``finding-N.html`` for each finding.

    Failing cells come first, beside the matrix as a picture; then findings, each with a page that
    has its cases and the commands that replay them; then charts, a search over all cases, and a
    picture for each subject, failing ones first.

    Args:
        folder: The results folder. Pages of findings of an earlier report are removed.
        rows: The rows of the run.
        facts: What was asked and what it covers, name -> text.
        vanished: Known findings that no case shows any more.
        charts: Charts to show besides the one of times.
        checklists: Answers to the six points, of each model or family.

    Returns:
        Where ``report.html`` was written.
    """
    environment = Environment(
        loader=PackageLoader("harness.report", "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_written_out,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    for stale in folder.glob(_FINDING_PAGES):
        stale.unlink()
    groups = group_rows(rows)
    for group in groups:
        text = environment.get_template("finding.html.j2").render(
            headline=group.title,
            group=group,
            index=PAGE_FILE,
            most_detailed=_MOST_DETAILED,
            most_findings=_MOST_FINDINGS,
        )
        (folder / group.page).write_text(text, encoding="utf-8")
    text = environment.get_template("page.html.j2").render(
        headline=summary_line(rows),
        facts={name: str(value).splitlines() for name, value in facts.items()},
        table=tabulate(rows),
        failing=any(not row.passed for row in rows),
        groups=groups,
        worst=worst_pairs(rows, _MOST_CELLS),
        expected=expected_reasons(rows),
        vanished=vanished,
        charts=[time_chart(rows), *charts],
        checklists=checklists,
        outcomes=list(outcome_counts(rows)),
        search=_searchable(rows, groups),
        whole=draw(rows, "all subjects"),
        pictures=_pictures(rows),
        seconds=sum(row.seconds for row in rows),
    )
    path = folder / PAGE_FILE
    path.write_text(text, encoding="utf-8")
    return path


def _searchable(rows: Sequence[Row], groups: Sequence[Group]) -> dict[str, Any]:
    pages = {id(row): group.page for group in groups for row in group.rows}
    return {
        "cases": [
            [row.case, row.outcome, row.seconds, pages.get(id(row), ""), row.passed] for row in rows
        ],
        "defaults": {axis.name: value_text(axis.default) for axis in AXES},
        "most": _MOST_ROWS_SHOWN,
    }


def _pictures(rows: Sequence[Row]) -> list[Picture]:
    subjects = sorted({row.subject for row in rows})
    pictures = [draw([row for row in rows if row.subject == name], name) for name in subjects]
    return sorted(pictures, key=lambda picture: -picture.failing / picture.total)


def _written_out(value: object) -> object:
    """Write out control characters of a text that is not markup of the templates' own."""
    return plain(value) if type(value) is str else value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
