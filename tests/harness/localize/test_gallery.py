from __future__ import annotations

from pathlib import Path

from harness.findings import CauseKind
from harness.remedies import REMEDIES
from tests.harness.localize.gallery import page, without_numbers

PAGE = Path(__file__).parents[3] / "docs" / "findings.md"


def test_every_kind_of_cause_has_a_remedy_of_one_sentence() -> None:
    assert set(REMEDIES) == set(CauseKind)
    for remedy in REMEDIES.values():
        assert remedy and not remedy.endswith(".") and ". " not in remedy


def test_the_page_of_findings_shows_what_the_lab_prints() -> None:
    assert without_numbers(PAGE.read_text().rstrip()) == without_numbers(page())
