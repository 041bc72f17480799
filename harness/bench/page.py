"""The page of the figures, written from the documents that `ckpt-lab bench --json` left.

`python -m harness.bench.page` writes `docs/performance.md` and its plots from
`docs/performance/*.json`; with `--check` it only says whether they are what it would write. What
people write themselves, `shortfalls.md` and `log.md` in the same folder, is taken in as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.bench.benchmark import GROUPS
from harness.bench.catalogue import BENCHMARKS
from harness.bench.results import (
    Document,
    Row,
    goal_text,
    interval_text,
    read_document,
    value_text,
)

FOLDER = Path("docs", "performance")
PAGE = Path("docs", "performance.md")
FRAGMENTS = ("shortfalls.md", "log.md")
_PLOTS = (
    ("goals", "", "Every figure with a goal, over its goal, with its interval"),
    ("memory", "saved-over-limit", "What models keep for backward"),
    ("growth", "growth-exponent", "Time of a training step over the number of voxels"),
    ("night", "lab-memory-growth", "Resident size of the ranks over a night of cases"),
)
"""Names of the plots, of the figures that they need, and what they show."""

_BYTES = "saved-over-limit-"
_HEAD = """\
# Performance

<!-- Written by `python -m harness.bench.page` from the files in docs/performance. Do not edit. -->

What checkpointing and the lab cost, each figure over the least that it could be, both measured side
by side in one run. The interval of the median, at the confidence beside it, decides: `pass` and
`fail` where it lies wholly on one side of the goal, `undecided` otherwise. How to run them, and
what is in the JSON files: [benchmarks.md](benchmarks.md).
"""


def page_text(documents: Sequence[Document], fragments: Sequence[str]) -> str:
    """Return the page.

    Args:
        documents: of one machine; later ones replace figures of earlier ones.
        fragments: Markdown that is put at the end.

    Raises:
        ValueError: a document has a figure that is no benchmark any more, or there is none at all.
    """
    rows = {row["name"]: row for document in documents for row in document["benchmarks"]}
    known = {benchmark.name for benchmark in BENCHMARKS}
    gone = rows.keys() - known
    if gone or not rows:
        raise ValueError(
            f"the documents hold {sorted(gone) or 'no figure'}, which is no benchmark any more; "
            "run `ckpt-lab bench` again"
        )
    parts = [_HEAD, _machines(documents)]
    for group in GROUPS:
        chosen = [rows[b.name] for b in BENCHMARKS if b.group == group and b.name in rows]
        if chosen:
            parts.append(f"## Group `{group}`\n\n{_table(chosen)}")
    if any(name.startswith(_BYTES) for name in rows):
        parts.append("## Bytes\n\n" + _bytes_table(rows))
    parts += [
        f"![{text}](performance/{name}.svg)"
        for name, needed, text in _PLOTS
        if any(row.startswith(needed) for row in rows if "value" in rows[row])
    ]
    return "\n".join([*(part.rstrip() + "\n" for part in parts), *fragments])


def write_page(folder: Path = FOLDER, page: Path = PAGE) -> None:
    """Write the page and its plots.

    Args:
        folder: where the documents and fragments are; the plots are drawn there.
        page: the file to write.

    Raises:
        ValueError: there are no documents, or one is not valid.
        OSError: a file cannot be read or written.
    """
    from harness.bench.plots import draw

    page.write_text(_text_from(folder))
    draw(_documents(folder), folder)


def is_current(folder: Path = FOLDER, page: Path = PAGE) -> bool:
    """Whether the page is what would be written from the documents and fragments.

    Args:
        folder: where they are.
        page: the file.

    Raises:
        ValueError: there are no documents, or one is not valid.
        OSError: a file cannot be read.
    """
    return page.is_file() and page.read_text() == _text_from(folder)


def _text_from(folder: Path) -> str:
    fragments = [(folder / name).read_text() for name in FRAGMENTS]
    return page_text(_documents(folder), fragments)


def _documents(folder: Path) -> list[Document]:
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"{folder} holds no documents of `ckpt-lab bench --json FILE.json`")
    return sorted(map(read_document, paths), key=lambda document: str(document["started"]))


def _machines(documents: Sequence[Document]) -> str:
    lines = ["| measured | on |", "|---|---|"]
    for document in documents:
        m = document["machine"]
        lines.append(
            f"| {document['started']} | {m['processor']}, {m['cores']} cores, "
            f"{m['memory_gib']} GiB; {m['threads']} torch threads, load {m['load']} at the start; "
            f"torch {m['torch']}, Python {m['python']}, wcn-ckpt {m['wcn_ckpt']}, {m['system']} |"
        )
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "| benchmark | what | figure | interval | goal | verdict |",
        "|---|---|---:|---|---|---|",
    ]
    for row in rows:
        unit = "" if row["unit"] in ("ratio", "exponent") else f" {row['unit']}"
        figure = f"{value_text(row)}{unit}" if "value" in row else f"not measured: {_reason(row)}"
        verdict = f"**{row['verdict']}**" if row["verdict"] == "fail" else row["verdict"]
        lines.append(
            f"| `{row['name']}` | {row['doc']} | {figure} | {interval_text(row)} | "
            f"{goal_text(row)} | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def _reason(row: Row) -> str:
    return str(row["error"]).partition("\n")[0]


def _bytes_table(rows: dict[str, Row]) -> str:
    lines = [
        "Kept for backward by one forward pass, in MB. *Inside* is what is kept because of "
        "boundaries, *outside* what autograd saves elsewhere; a storage of both counts once in "
        "the total.",
        "",
        "| model | sites | ordinary | outside | checkpointed | inside | boundary inputs | limit |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        if name.startswith(_BYTES) and "details" in row:
            d = row["details"]
            keys = (
                "ordinary",
                "ordinary_outside",
                "checkpointed",
                "checkpointed_inside",
                "boundary_inputs",
                "limit",
            )
            megabytes = " | ".join(f"{d[key] / 1e6:.1f}" for key in keys)
            lines.append(f"| {name.removeprefix(_BYTES)} | {d['sites']} | {megabytes} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(prog="python -m harness.bench.page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is stale")
    if not parser.parse_args().check:
        write_page()
    elif not is_current():
        raise SystemExit(f"{PAGE} is stale; write it with `python -m harness.bench.page`")


if __name__ == "__main__":
    main()
