"""Whatever a block, an arm or a log says, no report lets it act."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

import harness
from harness.baseline import Known
from harness.comparison import compare
from harness.findings import Finding
from harness.report.compared import comparison_markdown, comparison_text
from harness.report.escape import markdown, markdown_code, one_line, plain
from harness.report.facts import write_reports
from harness.report.terminal import show_findings, show_result, show_vanished
from harness.row import Row

SIGNS = "\x1b[31m<script>alert(1)</script>`| **bold** [link](x) </td> {{ 7 * 7 }} \u202e&amp;"
TWO_LINES = f"{SIGNS}\n# heading"
KNOWN = Known(case="*", path="*", reason=SIGNS)
FACTS = {"suite": SIGNS, "arm": TWO_LINES}


def row(outcome: str, seed: int = 0) -> Row:
    finding = Finding(
        rank=0,
        point=SIGNS,
        path=f"buffers/{SIGNS}",
        expected=SIGNS,
        got=TWO_LINES,
        max_abs=1.0,
        tolerance_source=SIGNS,
        cause=TWO_LINES,
        remedy=TWO_LINES,
        module=SIGNS,
    )
    return Row(
        case=f"{SIGNS},steps=3",
        subject=SIGNS,
        axes={"steps": 3, "own axis": "odd"},
        seed=seed,
        arm=SIGNS,
        ranks=2,
        outcome=outcome,  # type: ignore[arg-type]
        findings=(finding,),
        seconds=1.0,
    )


ROWS = [row("differs"), row("error", 1), row("expected_difference", 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    write_reports(folder, ROWS, FACTS, [KNOWN])
    return folder


def test_control_characters_are_written_out() -> None:
    assert plain("a\x1b[31mb\x00\u202ec\td\ne") == "a\\x1b[31mb\\x00\\u202ec\td\ne"
    assert one_line("a\rb\nc") == "a\\rb"


def test_markdown_is_shown_as_it_was_written() -> None:
    assert markdown("a|b *c* <d> `e` [f](g) &") == (r"a\|b \*c\* &lt;d&gt; \`e\` \[f\](g) &amp;")
    assert markdown_code("a") == "`a`"
    assert markdown_code("a|b") == r"`a\|b`"
    assert markdown_code("a``b`") == "``` a``b` ```"


class Tags(HTMLParser):
    """Counts the tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.counts[tag] += 1


def tags(folder: Path) -> dict[str, Counter[str]]:
    found = {}
    for path in folder.rglob("*.html"):
        parser = Tags()
        parser.feed(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(folder))] = parser.counts
    return found


def harmless(text: str) -> str:
    return {TWO_LINES: "word\nword"}.get(text, text.replace(SIGNS, "word"))


def without_signs(finding: Finding) -> Finding:
    texts = {item.name: getattr(finding, item.name) for item in fields(finding)}
    return replace(finding, **{n: harmless(t) for n, t in texts.items() if type(t) is str})


def test_pages_have_the_tags_of_a_harmless_run(folder: Path, tmp_path: Path) -> None:
    rows = [
        replace(
            one,
            case=harmless(one.case),
            subject="word",
            arm="word",
            findings=tuple(map(without_signs, one.findings)),
        )
        for one in ROWS
    ]
    facts = {name: harmless(text) for name, text in FACTS.items()}
    write_reports(tmp_path, rows, facts, [replace(KNOWN, reason="word")])

    assert tags(folder) == tags(tmp_path)
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "\x1b" not in text and "\u202e" not in text
        assert "{{ 7 * 7 }}" in text, "what is shown is no template"


def outside_code(text: str) -> str:
    """Return Markdown without its code, which is shown as it is."""
    lines = [line for line in text.splitlines() if not line.startswith("    ")]
    unescaped = re.sub(r"\\[`|*]", "", "\n".join(lines))
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", unescaped)


def check_markdown(text: str) -> None:
    assert "\x1b" not in text and "\u202e" not in text and "\n# heading" not in text
    assert "<script" not in outside_code(text) and "**bold**" not in outside_code(text)
    for table in re.findall(r"(?:^\|.*\n)+", text + "\n", re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_the_summary_shows_signs_as_signs(folder: Path) -> None:
    check_markdown((folder / "summary.md").read_text(encoding="utf-8"))


def test_a_comparison_shows_signs_as_signs() -> None:
    found = compare([row("equal"), row("equal", 1)], ROWS, settings={SIGNS: (SIGNS, TWO_LINES)})

    check_markdown(comparison_markdown(found))
    assert "\x1b" not in comparison_text(found) and "\u202e" not in comparison_text(found)


def test_junit_is_well_formed(folder: Path) -> None:
    suite = ElementTree.parse(folder / "junit.xml").getroot()

    assert len(list(suite.iter("testcase"))) == len(ROWS)
    assert "\x1b" not in (folder / "junit.xml").read_text(encoding="utf-8")


def test_the_terminal_gets_no_control_character() -> None:
    console = Console(
        file=io.StringIO(), width=200, highlight=False, markup=False, soft_wrap=True, no_color=True
    )

    show_result(ROWS, console)
    show_findings(ROWS[0], console, everything=True)
    show_vanished([KNOWN], console)

    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\\x1b[31m" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_only_ranks_unpickle_and_only_what_ranks_send_each_other() -> None:
    unsafe = re.compile(r"^\s*(import|from) (pickle|shelve|marshal)\b|torch\.load\(", re.M)
    root = Path(harness.__file__).parent
    readers = [path for path in root.rglob("*.py") if unsafe.search(path.read_text())]

    assert {path.parent.name for path in readers} == {"ranks"}
