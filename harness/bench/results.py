"""The JSON document that a run of benchmarks leaves.

``schema``: 1. ``started``: when, UTC. ``machine``: what it ran on, see `harness.bench.machine`.
``benchmarks``: one object each, in the order they ran, see `row_of`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.bench.benchmark import Benchmark, Measurement

SCHEMA = 1
Row = dict[str, Any]
Document = dict[str, Any]


def row_of(benchmark: Benchmark, measured: Measurement | str, seconds: float) -> Row:
    """Return what is written of one benchmark.

    Args:
        benchmark: which.
        measured: what it gave; why it could not be measured, if that is so.
        seconds: how long it ran.

    Returns:
        ``name``, ``group``, ``unit``, ``doc``; ``at_most`` and ``at_least``, one of them or both
        null; ``verdict``: pass, fail, undecided, no goal, or error; ``seconds``. With the verdict
        error ``error`` says why; with every other one there are ``value``, ``low``, ``high``,
        ``confidence``, ``samples`` and ``details``, whose keys depend on the benchmark.
    """
    row: Row = {
        "name": benchmark.name,
        "group": benchmark.group,
        "unit": benchmark.unit,
        "doc": benchmark.doc,
        "at_most": benchmark.at_most,
        "at_least": benchmark.at_least,
        "verdict": "error",
        "seconds": round(seconds, 3),
    }
    if isinstance(measured, str):
        return {**row, "error": measured}
    estimate = measured.estimate
    return {
        **row,
        "verdict": benchmark.verdict(estimate),
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "confidence": estimate.confidence,
        "samples": estimate.samples,
        "details": dict(measured.details),
    }


def document_of(started: str, machine: Mapping[str, Any], rows: Sequence[Row]) -> Document:
    """Return the whole document.

    Args:
        started: when the run started, as in ISO 8601.
        machine: what it ran on.
        rows: what was measured so far.
    """
    return {
        "schema": SCHEMA,
        "started": started,
        "machine": dict(machine),
        "benchmarks": list(rows),
    }


def text_of(document: Document) -> str:
    """Return a document as JSON text."""
    return json.dumps(document, indent=1) + "\n"


def read_document(path: Path) -> Document:
    """Read a document.

    Args:
        path: the file.

    Raises:
        ValueError: it is no such document, or of another schema.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON document: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA or "benchmarks" not in document:
        raise ValueError(f"{path} is no document of benchmarks of schema {SCHEMA}, got {schema!r}")
    result: Document = document
    return result


def goal_text(row: Row) -> str:
    """Return the goal of a row in words."""
    if row["at_most"] is not None:
        return f"at most {row['at_most']:g}"
    return f"at least {row['at_least']:g}" if row["at_least"] is not None else ""


def value_text(row: Row) -> str:
    """Return the figure of a row."""
    return "" if "value" not in row else number_text(row["value"])


def interval_text(row: Row) -> str:
    """Return the interval of a row, with its confidence; `counted` where nothing is sampled."""
    if "value" not in row:
        return ""
    if row["confidence"] == 1:
        return "counted"
    if row["samples"] == 1:
        return "one run"
    low, high = number_text(row["low"]), number_text(row["high"])
    return f"{low} .. {high} ({100 * row['confidence']:.0f} %)"


def number_text(value: float) -> str:
    """Return a number with as many digits as tell figures near a goal apart."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.3f}" if abs(value) >= 0.1 else f"{value:.2g}"
