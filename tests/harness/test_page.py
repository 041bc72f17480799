"""The HTML page: whole, self-contained, and with what fails first."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.baseline import Known
from harness.findings import Finding
from harness.report.page import write_page
from harness.report.pairs import Pair, count_pairs, draw, worst_pairs
from harness.row import Outcome, Row
from matrix.case import parse_case

FINDING = Finding(
    rank=1,
    point="step[2]",
    path="buffers/norm.running_mean[0]",
    expected=0.25,
    got="<script>alert(1)</script>\nsecond line",
    max_abs=1e-5,
    cause="a cause & <more>",
    remedy="a remedy",
)


def row(case_id: str, outcome: Outcome = "equal", *findings: Finding) -> Row:
    case = parse_case(case_id)
    return Row(
        case=case.id,
        subject=case.subject.name,
        axes=case.assignment,
        seed=0,
        arm="checkpointed",
        ranks=2,
        outcome=outcome,
        findings=findings,
        seconds=0.5,
    )


ROWS = [
    row("basic"),
    row("basic,wrapper=ddp"),
    row("basic,wrapper=ddp,steps=3", "differs", FINDING),
    row("readme,wrapper=ddp,steps=3"),
    row("readme,backward=retained,steps=3", "differs", FINDING),
    row("dropout,enable=rng_not_preserved", "expected_difference", FINDING),
]


class Balance(HTMLParser):
    """Collects tags that were not closed, and addresses that were asked for."""

    VOID = ("meta", "br", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture
def page(tmp_path: Path) -> str:
    vanished = [Known(case="basic*", path="gradients/*", reason="long <ago>")]
    facts = {"suite": "smoke", "coverage": "all\nruled out: 1"}
    return write_page(tmp_path, ROWS, facts, vanished).read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_needs_nothing_else(page: str) -> None:
    parser = Balance()
    parser.feed(page)

    assert parser.open == []
    assert parser.addresses == []
    assert "@import" not in page and "url(" not in page


def test_failing_cells_come_first_then_findings_with_their_replay_command(page: str) -> None:
    order = ["6 cases", "Failing cells", "Findings", "No longer found", "Expected differences"]
    places = [page.index(text) for text in [*order, "subject by subject"]]

    assert places == sorted(places)
    assert "ckpt-lab replay basic,wrapper=ddp,steps=3 --arm checkpointed --seed 0" in page
    assert "rank 1 · step[2] · <code>buffers/norm.running_mean[0]</code>" in page


def test_what_is_shown_is_escaped(page: str) -> None:
    assert "<script" not in page
    assert "a cause &amp; &lt;more&gt;" in page
    assert "long &lt;ago&gt;" in page


def test_a_run_without_failures_shows_the_matrix_at_once(tmp_path: Path) -> None:
    text = write_page(tmp_path, ROWS[:2], {"suite": "smoke"}).read_text(encoding="utf-8")

    assert "Failing cells" not in text and "Findings" not in text
    assert "<h2>The matrix</h2>" in text


def test_pairs_are_counted_by_subject() -> None:
    pairs = count_pairs(ROWS)

    assert pairs[Pair("basic", "wrapper=ddp", "steps=3")] == (0, 1)
    assert pairs[Pair("basic", "wrapper=ddp", "steps=1")] == (1, 1)
    assert Pair("basic", "bn_momentum=0.1", "wrapper=ddp") not in pairs


def test_the_worst_cells_are_the_ones_with_the_largest_share() -> None:
    rows = [*ROWS[:3], row("basic,steps=3"), row("basic,steps=3,bn_momentum=none", "differs")]

    worst = worst_pairs(rows, 20)

    shares = [cell.passed / cell.total for _, cell in worst]
    assert shares == sorted(shares)
    assert all(cell.passed < cell.total for _, cell in worst)
    assert worst_pairs(rows, 1) == worst[:1]


def test_the_picture_has_a_square_for_each_pair_of_values_of_two_axes() -> None:
    picture = draw(ROWS, "all")

    titles = {square.title: square.style for square in picture.squares}
    # wrapper, backward, enable and steps have two values each in these rows.
    assert len(picture.labels) == 8
    assert len(picture.squares) == 6 * 4
    assert titles["wrapper=ddp, steps=3: 1/2 fail"] == "bad2"
    assert titles["backward=retained, steps=3: 1/1 fail"] == "bad4"
    assert titles["backward=retained, steps=1: no case"] == "empty"
    assert (picture.failing, picture.total) == (2, 6)
    assert len(re.findall("ok", " ".join(titles.values()))) > 0
