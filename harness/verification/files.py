"""The report of verify as files."""

from __future__ import annotations

import json
from pathlib import Path

from harness.report.checklists import cost_charts
from harness.report.facts import write_reports
from harness.store import Store
from harness.verification.plot import write_plot
from harness.verification.report import Report
from harness.verification.request import VerifyRequest

REPORT_FILE = "verify.txt"
DATA_FILE = "verify.json"


def write_files(store: Store, report: Report, request: VerifyRequest) -> Path:
    """Write the rows, ``verify.txt``, ``verify.json``, and the reports that a run has.

    Args:
        store: The results folder, open.
        report: The report.
        request: What was asked.

    Returns:
        Where the page is, or the text where nothing was judged.
    """
    for row in report.rows:
        store.append(row)
    text = store.folder / REPORT_FILE
    text.write_text(report.text + "\n", encoding="utf-8")
    data = json.dumps(report.to_dict(), indent=2)
    (store.folder / DATA_FILE).write_text(data + "\n", encoding="utf-8")
    if report.suggestion is not None:
        write_plot(store.folder, report.suggestion)
    if not report.rows:
        return text
    facts = {
        "verdict": report.verdict,
        "command": request.command,
        "judged": report.judged,
        "ranks": request.ranks,
        "device": request.device,
        "coverage": report.coverage,
    }
    measured = {report.name: report.measurement} if report.measurement else {}
    checklists = [report.checklist] if report.checklist else []
    return write_reports(
        store.folder, report.rows, facts, charts=cost_charts(measured), checklists=checklists
    )
