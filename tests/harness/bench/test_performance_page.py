"""The page of the figures comes from the documents beside it, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.bench.benchmark import Measurement
from harness.bench.catalogue import choose
from harness.bench.estimate import Estimate, exact
from harness.bench.page import is_current, page_text, write_page
from harness.bench.plots import draw
from harness.bench.results import Document, document_of, row_of, text_of

ROOT = Path(__file__).parents[3]
COUNTS = {
    key: 1_500_000
    for key in (
        "sites",
        "ordinary",
        "ordinary_outside",
        "checkpointed",
        "checkpointed_inside",
        "checkpointed_outside",
        "boundary_inputs",
        "limit",
    )
}
MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "memory_gib": 16.0,
    "threads": 2,
    "load": 0.1,
    "torch": "2.13.0",
    "python": "3.11.7",
    "wcn_ckpt": "0.1.0",
    "system": "Linux",
}


@pytest.fixture
def documents() -> list[Document]:
    measured: dict[str, Measurement | str] = {
        "boundary-disabled": Measurement(Estimate(1.005, 1.004, 1.006, 0.96, 20)),
        "lab-over-bare-loop": Measurement(Estimate(0.8, 0.7, 0.85, 0.96, 20)),
        "lab-over-torch-class": "it needs `expecttest`\nmore",
        "saved-over-limit-minkunet18": Measurement(exact(1.0), COUNTS),
        "growth-exponent": Measurement(
            Estimate(1.05, 1.0, 1.2, 0.97, 6), {"voxels": [1, 2, 4], "seconds": [1, 2.1, 4.3]}
        ),
        "lab-memory-growth": Measurement(
            Estimate(0.1, 0.0, 0.2, 0.95, 2),
            {"cases": [1, 2], "resident_mib": [[300, 301], [302, 302]]},
        ),
    }
    rows = [row_of(b, measured[b.name], 1.0) for b in choose(list(measured), None)]
    return [
        document_of("2026-01-01T00:00:00+00:00", MACHINE, rows[:4]),
        document_of("2026-01-02T00:00:00+00:00", MACHINE, rows[4:]),
    ]


def test_each_figure_has_a_row_with_its_verdict(documents: list[Document]) -> None:
    text = page_text(documents, ["## Log\n"])

    assert "| 1.005 | 1.004 .. 1.006 (96 %) | at most 1.01 | pass |" in text
    assert "| 0.800 | 0.700 .. 0.850 (96 %) | at least 0.9 | **fail** |" in text
    assert "| not measured: it needs `expecttest` |  | at least 1 | error |" in text
    assert "| 1.000 | counted | at most 1.05 | pass |" in text
    assert "| 1.050 | 1.000 .. 1.200 (97 %) | at most 1.1 | undecided |" in text
    assert "| minkunet18 | 1500000 | 1.5 | 1.5 |" in text
    assert "a processor, 2 cores" in text and "torch 2.13.0, Python 3.11.7" in text
    assert text.index("`quick`") < text.index("`long`") < text.index("## Log")


def test_a_page_is_current_until_a_document_or_a_fragment_changes(
    documents: list[Document], tmp_path: Path
) -> None:
    folder, page = tmp_path / "performance", tmp_path / "performance.md"
    folder.mkdir()
    for name, document in zip(("quick", "long"), documents, strict=True):
        (folder / f"{name}.json").write_text(text_of(document))
    for name in ("shortfalls.md", "log.md"):
        (folder / name).write_text(f"## {name}\n")
    write_page(folder, page)

    assert is_current(folder, page)
    assert {path.stem for path in folder.glob("*.svg")} == {"goals", "memory", "growth", "night"}
    (folder / "log.md").write_text("## Log\n\nsomething new\n")
    assert not is_current(folder, page)


def test_the_page_of_the_project_is_current() -> None:
    assert is_current(ROOT / "docs" / "performance", ROOT / "docs" / "performance.md")


def test_a_figure_that_is_no_benchmark_any_more_is_refused(documents: list[Document]) -> None:
    documents[0]["benchmarks"][0]["name"] = "gone"

    with pytest.raises(ValueError, match=r"\['gone'\]"):
        page_text(documents, [])


def test_plots_without_data_are_left_out(documents: list[Document], tmp_path: Path) -> None:
    alone = json.loads(json.dumps(documents[0]))
    alone["benchmarks"] = alone["benchmarks"][:1]

    first, again = (draw([alone], tmp_path / name) for name in ("a", "b"))

    assert [path.name for path in first] == ["goals.svg"]
    assert first[0].read_bytes() == again[0].read_bytes()
