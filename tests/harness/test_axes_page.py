"""The page on the axes is what the code says, and the page on the lab names them all."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from harness.axes_page import axes_page
from harness.cli import app
from matrix.axes import AXES
from matrix.constraints import CONSTRAINTS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_in_the_docs_is_what_the_command_prints() -> None:
    result = CliRunner().invoke(app, ["list", "--axes"])

    assert result.exit_code == 0, result.output
    assert (DOCS / "axes.md").read_text(encoding="utf-8") == result.output, (
        "make it again: ckpt-lab list --axes > docs/axes.md"
    )


def test_every_axis_and_every_exclusion_has_a_row() -> None:
    rows = [
        re.split(r" (?<!\\)\| ", line) for line in axes_page().splitlines() if line[:3] == "| `"
    ]
    axes, exclusions = rows[: len(AXES)], rows[len(AXES) :]

    assert [row[0] for row in axes] == [f"| `{axis.name}`" for axis in AXES]
    assert [len(row[1].split(", ")) for row in axes] == [len(axis.values) for axis in AXES]
    assert [row[-1].removesuffix(" |") for row in exclusions] == [r.reason for r in CONSTRAINTS]


def test_the_subjects_that_vary_along_an_axis_are_counted() -> None:
    subjects = {line.split(" | ")[0]: line for line in axes_page().splitlines()}

    assert subjects["| `wrapper`"].endswith("| all |")
    assert subjects["| `device`"].endswith("| all, where asked for |")
    assert re.search(r"\| \d+ of \d+ \|$", subjects["| `dropout`"])


def test_the_page_on_the_lab_names_every_axis() -> None:
    page = (DOCS / "lab.md").read_text(encoding="utf-8")

    assert [axis.name for axis in AXES if f"`{axis.name}`" not in page] == []
