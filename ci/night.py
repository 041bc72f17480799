"""Write what a person reads in the morning: a page of Markdown about last night's run.

Run as ``python -m ci.night TONIGHT [--before LAST_NIGHT]``. It ends with 0 where a page could be
written, whatever the page says: the run and the merge have had their say with theirs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.comparison import compare_folders
from harness.report.compared import comparison_markdown
from harness.report.tally import summary_line
from harness.row import Row
from harness.store import read_rows, read_run

PAGE = "night.md"
"""Name of the page in the results folder."""
_MOST_FAILING = 10


def page(rows: Sequence[Row], run: dict[str, Any], comparison: str) -> str:
    """Return the page.

    Args:
        rows: Tonight's rows.
        run: Tonight's ``run.json``.
        comparison: What changed since the night before, as Markdown.
    """
    failing = [row for row in rows if not row.passed]
    asked, versions = run["asked"], run["versions"]
    lines = [
        f"# {_headline(len(failing))}",
        "",
        f"- {summary_line(rows)}",
        f"- suite {asked['suite']}, arm {asked['arm']}, {asked['ranks']} ranks a case, "
        f"device {asked['device']}, {sum(row.seconds for row in rows) / 60:.0f} minutes of cases",
        f"- Python {versions['python']}, torch {versions['torch']}",
        "",
    ]
    if failing:
        lines += ["## Not as expected", ""]
        lines += [f"- {row.outcome}: `{row.replay_command}`" for row in failing[:_MOST_FAILING]]
        if len(failing) > _MOST_FAILING:
            lines.append(f"- and {len(failing) - _MOST_FAILING} more, in summary.md")
        lines.append("")
    return "\n".join([*lines, comparison.rstrip(), ""])


def _headline(failing: int) -> str:
    if not failing:
        return "All as expected"
    return "1 case is not as expected" if failing == 1 else f"{failing} cases are not as expected"


def write_page(tonight: Path, before: Path | None) -> Path:
    """Write the page into tonight's folder.

    Args:
        tonight: A results folder.
        before: The results folder of the night before; None where there was none.

    Returns:
        Where it was written.

    Raises:
        FileNotFoundError: If ``tonight`` is no results folder.
        harness.store.StoreError: If a folder cannot be read.
    """
    if before is None:
        comparison = "There is no night before to compare with.\n"
    else:
        comparison = comparison_markdown(compare_folders(before, tonight))
    path = tonight / PAGE
    path.write_text(page(read_rows(tonight), read_run(tonight), comparison), encoding="utf-8")
    return path


def main() -> None:
    """Write the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m ci.night", description=__doc__)
    parser.add_argument("tonight", type=Path, help="results folder")
    parser.add_argument("--before", type=Path, help="results folder of the night before")
    arguments = parser.parse_args()
    before = arguments.before
    if before is not None and not (before / "run.json").exists():
        before = None
    print(write_page(arguments.tonight, before).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
