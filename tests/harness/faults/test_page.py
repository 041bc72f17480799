"""The pages about faults say what the code and the tests say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import wcn_ckpt
from harness.faults import FAULTS
from harness.faults.page import COUNTS_FILE, PAGE_FILE, faults_page, merged
from harness.faults.subjects import OWN_SUBJECTS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PUBLIC = [
    line.strip("|").split("|")
    for line in (DOCS / "public_faults.md").read_text().splitlines()
    if line.startswith("| ")
][1:]
every_report = pytest.mark.parametrize("row", PUBLIC, ids=lambda row: row[0].strip())


def test_the_page_of_faults_is_up_to_date() -> None:
    counts = json.loads((DOCS / COUNTS_FILE).read_text())

    assert (DOCS / PAGE_FILE).read_text() == faults_page(counts), (
        "write it anew: python -m harness.faults.page docs"
    )


def test_every_fault_that_runs_on_the_cpu_is_counted() -> None:
    counts = json.loads((DOCS / COUNTS_FILE).read_text())

    for suite, of_suite in counts.items():
        uncounted = {f.name for f in FAULTS if not f.needs_cuda} ^ set(of_suite)
        assert not uncounted, f"count them: ckpt-lab faults --kill-matrix {suite} --out ..."
        assert all(0 <= seen <= tried <= reached for seen, tried, reached in of_suite.values())


def test_counts_of_results_replace_older_ones() -> None:
    before = {"smoke": {"a": [1, 2, 2], "b": [1, 1, 1]}}
    item = {"fault": "a", "seen": 3, "tried": 4, "reached": 9, "seen_by": []}
    documents = [{"kill_matrix": {"suite": "smoke", "faults": [item]}}, {}]

    assert merged(before, documents) == {"smoke": {"a": [3, 4, 9], "b": [1, 1, 1]}}


def test_every_own_subject_is_named() -> None:
    page = (DOCS / PAGE_FILE).read_text()

    assert all(f"`{subject.name}`" in page for subject in OWN_SUBJECTS)


@every_report
def test_a_public_report_is_a_link_with_a_verdict(row: list[str]) -> None:
    reports, _, verdict, shown_by = (cell.strip() for cell in row)

    for report in reports.split(", "):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|https://[\w./-]+", report)
    assert re.match(
        r"kept right(: \w|$)|found(: \w|$)|refused: `\w+`$|warned: `\w+`$|outside: \w", verdict
    )
    assert shown_by


def _source(file: str) -> str:
    folders = (ROOT / "tests" / "checkpointing", ROOT / "tests" / "harness" / "localize")
    return next(folder / file for folder in folders if (folder / file).exists()).read_text()


@every_report
def test_what_shows_it_exists_and_bears_the_verdict_out(row: list[str]) -> None:
    _, _, verdict, shown_by = (cell.strip() for cell in row)
    tests = re.findall(r"`(\w+\.py)::(\w+)`", shown_by)
    faults = [name for name in re.findall(r"`([\w-]+)`", shown_by) if "::" not in name]

    for file, name in tests:
        source = _source(file)
        assert re.search(rf"^def {name}\(", source, re.M), f"{file} has no {name}"
    assert set(faults) <= {fault.name for fault in FAULTS}
    error = re.search(r"(?:refused|warned): `(\w+)`", verdict)
    if error is not None:
        assert hasattr(wcn_ckpt, error[1]) or error[1] == "RuntimeError"
        assert any(error[1] in _source(file) for file, _ in tests)
    if verdict.startswith("found"):
        assert faults or any(file == "test_localize.py" for file, _ in tests)
    elif verdict.startswith(("kept", "refused", "warned")):
        assert tests
