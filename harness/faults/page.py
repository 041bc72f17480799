"""The page of the documentation that shows every fault, and how many cases see each.

``python -m harness.faults.page docs RESULTS/faults.json`` takes counts over from results of
``ckpt-lab faults --kill-matrix SUITE --out RESULTS`` and writes ``docs/faults.md`` anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.faults.catalogue import FAULTS
from harness.faults.fault import FAMILIES, Family, Fault
from harness.faults.kill_matrix import count_text
from matrix.values import value_text

Counts = Mapping[str, Mapping[str, Sequence[int]]]
"""Suite -> fault -> how many cases saw it, of how many tried, of how many that it can reach."""

COUNTS_FILE = "kill_matrix.json"
PAGE_FILE = "faults.md"

_TITLES: Mapping[Family, str] = {
    "statistics": "Running statistics of norms",
    "state": "State that a block reads and writes",
    "random numbers": "Random numbers",
    "autocast": "Autocast",
    "inputs": "Inputs and closures",
    "gradients": "Gradients",
    "ranks": "Between ranks",
    "switching": "Switching on, and names",
}
_HEAD = """\
# Faults on purpose

`ckpt-lab faults` breaks checkpointing, or a block that is checkpointed, in each of the ways below,
runs the cases that must show it, and fails unless the lab catches every one and gives it the right
name. A fault that no case sees is an error of its own: it changes nothing. `--list` lists them,
`--fault NAME` injects one; what needs CUDA is reported as not run where there is none.

Each fault stands for something that was reported in public. [Faults that others
met](public_faults.md) says what this library does about the reports.
"""
_KILLS = """\
## Kill matrix

How many cases of a suite see each fault, of those that it can reach: `ckpt-lab faults --kill-matrix
SUITE` counts them. A fault that needs a block of its own is tried on the cases that the suite would
have of that block. Where only a sample was tried (`--sample`), the number of cases that the fault
can reach stands in brackets. Before a suite is thinned, look here for what it would no longer see.
"""


def faults_page(counts: Counts, faults: Sequence[Fault] = FAULTS) -> str:
    """Return the page as Markdown.

    Args:
        counts: How many cases see each fault, by suite.
        faults: The faults.
    """
    parts = [_HEAD]
    for family in FAMILIES:
        lines = [
            "| fault | what is broken | must show on | named | report |",
            "|---|---|---|---|---|",
        ]
        lines += [_line(fault) for fault in faults if fault.family == family]
        parts.append(f"## {_TITLES[family]}\n\n" + "\n".join(lines) + "\n")
    parts.append(_KILLS + "\n" + _kills(counts, faults))
    return "\n".join(parts)


def _kills(counts: Counts, faults: Sequence[Fault]) -> str:
    if not counts:
        return "Nothing has been counted for this version yet.\n"
    suites = list(counts)
    lines = [f"| fault | {' | '.join(f'`{suite}`' for suite in suites)} |"]
    lines.append("|---|" + "---|" * len(suites))
    for fault in faults:
        texts = [_count(counts[suite].get(fault.name)) for suite in suites]
        lines.append(f"| `{fault.name}` | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def merged(counts: Counts, documents: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return counts with those of some results put in.

    Args:
        counts: The counts so far.
        documents: What ``ckpt-lab faults`` wrote as JSON.
    """
    result = {suite: dict(of_suite) for suite, of_suite in counts.items()}
    for document in documents:
        matrix = document.get("kill_matrix", {"faults": []})
        for item in matrix["faults"]:
            count = [item["seen"], item["tried"], item["reached"]]
            result.setdefault(matrix["suite"], {})[item["fault"]] = count
    return result


def _line(fault: Fault) -> str:
    named = f"`{fault.sign.kind.value}`"
    if fault.sign.outcome != "differs":
        named += f", as `{fault.sign.outcome}`"
    report = f"[{fault.report.removeprefix('https://')}]({fault.report_address})"
    return f"| `{fault.name}` | {fault.doc} | {_where(fault)} | {named} | {report} |"


def _where(fault: Fault) -> str:
    subjects = ", ".join(f"`{subject.name}`" for subject in fault.subjects)
    axes = [
        f"`{name}={','.join(value_text(value) for value in values)}`"
        for name, values in fault.axes.items()
    ]
    return subjects + (f" under {', '.join(axes)}" if axes else "")


def _count(count: Sequence[int] | None) -> str:
    return "not counted" if count is None else count_text(*count)


def main(arguments: Sequence[str]) -> None:
    """Write the page, with the counts of some results taken over."""
    folder, *results = map(Path, arguments)
    file = folder / COUNTS_FILE
    counts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    documents = [json.loads(result.read_text(encoding="utf-8")) for result in results]
    counts = merged(counts, documents)
    file.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    (folder / PAGE_FILE).write_text(faults_page(counts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
