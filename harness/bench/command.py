"""`ckpt-lab bench`: measures named figures, shows them, and writes them as JSON and plots."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.text import Text

from harness.bench.benchmark import Benchmark, NotMeasurableError
from harness.bench.catalogue import BENCHMARKS, choose
from harness.bench.machine import machine
from harness.bench.results import (
    Document,
    Row,
    document_of,
    goal_text,
    interval_text,
    row_of,
    text_of,
    value_text,
)
from harness.ranks import RankStartError
from harness.report.tables import show_table
from harness.report.terminal import make_console

TO_STDOUT = Path("-")
_INTERRUPTED, _NOT_MEASURED = 130, 3


def show_list() -> None:
    """Print one row for each benchmark: name, group, goal, what it measures."""
    rows = [
        [Text(b.name), Text(b.group), Text(f"{b.goal_text} {b.unit}"), Text(b.doc)]
        for b in BENCHMARKS
    ]
    show_table(("benchmark", "group", "goal", "what it measures"), rows, make_console())


def run_bench(
    names: Sequence[str],
    group: str | None = None,
    samples: int | None = None,
    json_file: Path | None = None,
    plots: Path | None = None,
) -> int:
    """Measure figures one after the other.

    Args:
        names: which.
        group: all of a group, where no name is given; the quick one for None.
        samples: samples of each, instead of as many as it takes by itself.
        json_file: where the document goes, rewritten after each figure; `-` is standard output,
            which then holds nothing else.
        plots: folder that plots are drawn into.

    Returns:
        The exit status: 0; 3 where a figure could not be measured; 130 where interrupted, with
        what was measured until then written.

    Raises:
        ValueError: a name, the group or the number of samples is not valid.
        OSError: a file cannot be written.
    """
    chosen = choose(names, group)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    document = document_of(started, machine(), [])
    interrupted = False
    try:
        for number, benchmark in enumerate(chosen, start=1):
            _note(f"[{number}/{len(chosen)}] {benchmark.name}: {benchmark.doc}")
            document["benchmarks"].append(_measure(benchmark, samples))
            if json_file is not None and json_file != TO_STDOUT:
                json_file.write_text(text_of(document))
    except KeyboardInterrupt:
        interrupted = True
    if json_file == TO_STDOUT:
        print(text_of(document), end="")
    else:
        _show(document)
    if plots is not None:
        from harness.bench.plots import draw

        for path in draw([document], plots):
            _note(f"plot: {path}")
    if interrupted:
        return _INTERRUPTED
    errors = [row for row in document["benchmarks"] if row["verdict"] == "error"]
    return _NOT_MEASURED if errors else 0


def _measure(benchmark: Benchmark, samples: int | None) -> Row:
    start = time.monotonic()
    try:
        measured = benchmark.run(benchmark.samples if samples is None else samples)
    except (NotMeasurableError, RankStartError) as error:
        _note(f"{benchmark.name} could not be measured: {error}")
        return row_of(benchmark, str(error), time.monotonic() - start)
    return row_of(benchmark, measured, time.monotonic() - start)


def _show(document: Document) -> None:
    console = make_console()
    rows = [
        [
            Text(row["name"]),
            Text(value_text(row)),
            Text(row["unit"]),
            Text(interval_text(row)),
            Text(goal_text(row)),
            Text(row["verdict"]),
        ]
        for row in document["benchmarks"]
    ]
    show_table(("benchmark", "figure", "unit", "interval", "goal", "verdict"), rows, console)
    console.print(", ".join(f"{key} {value}" for key, value in document["machine"].items()))


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
