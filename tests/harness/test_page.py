"""The HTML page: whole, self-contained, and with what fails first."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.baseline import Known
from harness.findings import Finding
from harness.report.charts import bar_chart
from harness.report.groups import group_rows
from harness.report.page import PAGE_FILE, write_page
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

    VOID = ("meta", "br", "rect", "input")

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
def folder(tmp_path: Path) -> Path:
    vanished = [Known(case="basic*", path="gradients/*", reason="long <ago>")]
    facts = {"suite": "smoke", "coverage": "all\nruled out: 1"}
    chart = bar_chart("Memory", "in MiB", {"basic": ((4.0, 1.0), "4 MiB, 1 MiB")})
    (tmp_path / "finding-7.html").write_text("of an earlier report")
    write_page(tmp_path, ROWS, facts, vanished, [chart])
    return tmp_path


@pytest.fixture
def page(folder: Path) -> str:
    return (folder / PAGE_FILE).read_text(encoding="utf-8")


@pytest.fixture
def finding(folder: Path) -> str:
    return (folder / "finding-1.html").read_text(encoding="utf-8")


def test_the_pages_are_well_formed_and_need_nothing_else(page: str, finding: str) -> None:
    for text, addresses in ((page, ["finding-1.html"]), (finding, [PAGE_FILE])):
        parser = Balance()
        parser.feed(text)

        assert parser.open == []
        assert parser.addresses == addresses
        assert "@import" not in text and "url(" not in text and "://" not in text


def test_failing_cells_come_first_then_findings_then_charts_and_the_search(page: str) -> None:
    order = ["6 cases", "Failing cells", "Findings", "No longer found", "Expected differences"]
    order += ["Time by subject", "Memory", "All cases", "subject by subject"]
    places = [page.index(text) for text in order]

    assert places == sorted(places)
    assert "ckpt-lab replay basic,wrapper=ddp,steps=3 --arm checkpointed --seed 0" in page


def test_each_finding_has_a_page_with_its_cases_and_commands(folder: Path, finding: str) -> None:
    assert sorted(path.name for path in folder.glob("finding-*")) == ["finding-1.html"]
    assert "2 cases: differs" in finding
    assert "rank 1 · step[2] · <code>buffers/norm.running_mean[0]</code>" in finding
    assert "ckpt-lab replay readme,backward=retained,steps=3 --arm checkpointed" in finding
    assert "<code>steps=3</code>" in finding


def test_what_is_shown_is_escaped(page: str, finding: str) -> None:
    for text in (page, finding):
        assert "<script>alert" not in text
        assert "a cause &amp; &lt;more&gt;" in text
    assert "&lt;script&gt;alert" in finding
    assert "long &lt;ago&gt;" in page


def test_data_in_the_page_cannot_end_its_script(tmp_path: Path) -> None:
    hostile = replace(ROWS[0], case="</script><script>alert(1)</script>")
    text = write_page(tmp_path, [hostile], {}).read_text(encoding="utf-8")

    assert "<script>alert" not in text
    assert text.count("</script>") == 2


def test_rows_of_one_cause_are_one_finding_and_the_largest_comes_first() -> None:
    other = replace(FINDING, cause="updated 3 times")
    rows = [
        row("basic", "error", FINDING),
        row("basic,steps=3", "differs", other),
        row("basic,wrapper=ddp", "differs", replace(other, cause="updated 2 times")),
        row("readme"),
    ]

    first, second = group_rows(rows)

    assert (first.number, first.title, len(first.rows)) == (1, "updated 3 times", 2)
    assert (second.number, second.outcome, len(second.rows)) == (2, "error", 1)
    assert group_rows([row("basic")]) == []


def test_what_all_rows_of_a_finding_have_is_told_only_where_other_rows_do_not() -> None:
    (group,) = group_rows(ROWS)

    assert group.common == ("enable=model_call", "steps=3")


def test_bars_are_scaled_to_the_longest() -> None:
    chart = bar_chart("t", "d", {"a": ((4.0, 1.0), ""), "b": ((0.0,), "")})

    assert [bar.widths for bar in chart.bars] == [(100.0, 25.0), (0.0,)]
    assert bar_chart("t", "d", {"a": ((0.0,), "")}).bars[0].widths == (0.0,)


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
