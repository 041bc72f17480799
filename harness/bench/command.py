"""`ckpt-lab bench`: runs the named figures and prints them as a table or as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, Protocol

import torch
from rich.table import Table

from harness.bench.lab_rate import LabRate
from harness.bench.overhead import OVERHEADS
from harness.bench.paired import Ratio
from harness.report.terminal import make_console
from wcn_ckpt import __version__


class Figure(Protocol):
    """A named ratio of two things that are measured side by side."""

    @property
    def name(self) -> str:
        """Its name on the command line and in the output."""

    @property
    def limit(self) -> float:
        """The ratio that the project sets itself."""

    def measure(self, pairs: int) -> Ratio:
        """Time both sides in interleaved pairs.

        Args:
            pairs: how many pairs are asked for. A figure whose pairs take long times fewer of
                them; the ratio says how many.

        Raises:
            ValueError: there are too few pairs.
        """


FIGURES: tuple[Figure, ...] = (*OVERHEADS, LabRate())
"""Every figure of the command."""


def select(names: Sequence[str]) -> list[Figure]:
    """Return the figures with the given names, all of them for none.

    Raises:
        ValueError: a name is unknown.
    """
    known = {figure.name: figure for figure in FIGURES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"Unknown benchmark {unknown[0]!r}. Known: {', '.join(known)}.")
    return [known[name] for name in names or known]


def run_bench(names: Sequence[str], pairs: int, as_json: bool) -> None:
    """Measure figures side by side and print them.

    Args:
        names: which; all of them for none.
        pairs: interleaved pairs for each; figures that run on ranks time fewer.
        as_json: print one JSON document instead of a table.

    Raises:
        ValueError: a name is unknown, or there are too few pairs.
        RuntimeError: a figure that runs on ranks cannot be measured.
    """
    results = [(figure, figure.measure(pairs)) for figure in select(names)]
    if as_json:
        rows: list[dict[str, Any]] = [
            {"name": figure.name, "limit": figure.limit, **asdict(ratio)}
            for figure, ratio in results
        ]
        print(json.dumps({"machine": _machine(), "benchmarks": rows}, indent=2))
        return
    table = Table(title="Ratio to the reference: median of interleaved pairs, 95 % interval")
    for column in ("benchmark", "ratio", "interval", "goal", "judged", "reference"):
        justify: Literal["left", "right"] = "left" if column == "benchmark" else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for figure, ratio in results:
        table.add_row(
            figure.name,
            f"{ratio.median:.4f}",
            f"{ratio.low:.3f}..{ratio.high:.3f}",
            f"{figure.limit:.2f}",
            f"{ratio.judged * 1e6:.0f} us",
            f"{ratio.reference * 1e6:.0f} us",
        )
    console = make_console()
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in _machine().items()))


def _machine() -> dict[str, str]:
    return {
        "wcn-ckpt": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.1f}",
    }
