"""What a report says about the run as a whole, and the writing of all reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.baseline import Known
from harness.checklist.points import Checklist
from harness.report.charts import Chart
from harness.report.junit import write_junit
from harness.report.page import write_page
from harness.report.summary import write_summary
from harness.row import Row
from harness.shards import Shard
from matrix.suites import Selection


def coverage_texts(
    selections: Mapping[int, Selection], rows: Sequence[Row], shard: Shard | None = None
) -> dict[int, str]:
    """Return, by seed, what the cases that ran cover, or that it is less than was asked for.

    Args:
        selections: The cases of the run, by seed; all shards together.
        rows: The cases that ran.
        shard: The shard that they are; None for a whole run.
    """
    ran = {(row.case, row.seed) for row in rows}
    texts = {}
    for seed, selection in selections.items():
        done, asked = sum((case.id, seed) in ran for case in selection.cases), len(selection.cases)
        if done == asked:
            texts[seed] = selection.coverage_text
        elif shard is not None:
            texts[seed] = (
                f"shard {shard.text}: {done} of {asked} cases ran here (seed {seed}); what "
                "the suite covers is told by the shards together: ckpt-lab merge"
            )
        else:
            texts[seed] = (
                f"only {done} of {asked} cases ran (seed {seed}), "
                "so what the suite covers was not reached"
            )
    return texts


def run_facts(asked: Mapping[str, Any], coverage: Mapping[int, str]) -> dict[str, Any]:
    """Return what was asked and what it covers, name -> text.

    Args:
        asked: As in ``run.json``.
        coverage: As returned by :func:`coverage_texts`.
    """
    return {
        "suite": "last failed" if asked["last_failed"] else asked["suite"],
        "arm": asked["arm"],
        "ranks": asked["ranks"],
        "device": asked["device"],
        "seeds": ", ".join(map(str, coverage)),
        "coverage": "\n".join(dict.fromkeys(coverage.values())),
    }


def write_reports(
    folder: Path,
    rows: Sequence[Row],
    facts: Mapping[str, Any],
    vanished: Sequence[Known] = (),
    *,
    charts: Sequence[Chart] = (),
    checklists: Sequence[Checklist] = (),
) -> Path:
    """Write ``junit.xml``, ``summary.md`` and ``report.html``.

    Args:
        folder: The results folder.
        rows: The rows of the run.
        facts: As returned by :func:`run_facts`.
        vanished: Known findings that no case shows any more.
        charts: Charts to show besides the one of times.
        checklists: Answers to the six points, of each model or family.

    Returns:
        Where the page is.
    """
    write_junit(folder, rows)
    write_summary(folder, rows, facts, vanished, checklists)
    return write_page(folder, rows, facts, vanished, charts, checklists)
