"""The results of a run as JUnit XML, for continuous integration services."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from harness.report.escape import plain
from harness.report.terminal import finding_text
from harness.row import BROKEN, Row

JUNIT_FILE = "junit.xml"

# XML 1.0 has no way to write these; control characters are written out before.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(folder: Path, rows: Sequence[Row]) -> Path:
    """Write ``junit.xml``.

    Args:
        folder: The results folder.
        rows: The rows of the run.

    Returns:
        Where it was written.
    """
    errors = sum(row.outcome == "error" or row.outcome in BROKEN for row in rows)
    failing = sum(not row.passed for row in rows)
    suite = ElementTree.Element(
        "testsuite",
        name="ckpt-lab",
        tests=str(len(rows)),
        failures=str(failing - errors),
        errors=str(errors),
        time=f"{sum(row.seconds for row in rows):.3f}",
    )
    several_seeds = len({row.seed for row in rows}) > 1
    for row in rows:
        name = f"{row.case} seed {row.seed}" if several_seeds else row.case
        suite.append(_test_case(row, name))
    path = folder / JUNIT_FILE
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    return path


def _test_case(row: Row, name: str) -> ElementTree.Element:
    element = ElementTree.Element(
        "testcase", classname=_plain(row.subject), name=_plain(name), time=f"{row.seconds:.3f}"
    )
    if not row.passed:
        is_error = row.outcome == "error" or row.outcome in BROKEN
        cause = row.findings[0].cause if row.findings else row.outcome
        problem = ElementTree.SubElement(
            element, "error" if is_error else "failure", type=row.outcome, message=_plain(cause)
        )
        texts = [finding_text(finding, everything=True) for finding in row.findings]
        problem.text = _plain("\n".join([*texts, f"replay: {row.replay_command}"]))
    return element


def _plain(text: str) -> str:
    return _NOT_IN_XML.sub("?", plain(text))
