"""Measure peak memory and step time of every model of the matrix, ordinary and checkpointed.

Run as ``python -m ci.gpu_families FOLDER [--device cuda]``. It writes ``families.json`` and
``families.md``. On the CPU there is no peak memory to read: it is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from harness.arms import arm_named
from harness.checklist.step import Step
from harness.determinism import settle
from harness.job import make_job
from matrix.case import Case
from matrix.subject import Subject
from matrix.subjects import SUBJECTS

ARMS = ("ordinary", "checkpointed")
AUTOCAST = (None, "bfloat16")
WARM_UP = 2
"""Steps before the first one that counts."""
STEPS = 10
"""Steps that are timed."""


@dataclass(frozen=True)
class Figure:
    """What training steps of one model took."""

    family: str
    arm: str
    autocast: str | None
    milliseconds: float
    """Median of a step: forward, backward and an optimizer step."""
    peak_mib: float | None
    """Largest allocation during the steps, the model's own included; None on the CPU."""


def measure(subject: Subject, arm: str, autocast: str | None, device: str) -> Figure:
    """Time training steps of a subject and read their peak memory.

    Args:
        subject: The model.
        arm: Name of the arm.
        autocast: Name of the autocast dtype; None for no autocast.
        device: ``cpu`` or ``cuda``.
    """
    job = make_job(Case.of(subject, {"device": device}), arm=arm_named(arm).install, seed=0)
    step = Step(job, job.arm, rank=0)
    dtype = getattr(torch, autocast) if autocast else None
    with torch.autocast(device, dtype, enabled=dtype is not None):
        for _ in range(WARM_UP):
            step.timed()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = [sum(step.timed()) for _ in range(STEPS)]
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    return Figure(subject.name, arm, autocast, 1000 * statistics.median(times), peak)


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as Markdown."""
    lines = [
        "| family | arm | autocast | step, ms | peak memory, MiB |",
        "|---|---|---|---|---|",
    ]
    for figure in figures:
        peak = "" if figure.peak_mib is None else f"{figure.peak_mib:.1f}"
        autocast = figure.autocast or "off"
        lines.append(
            f"| {figure.family} | {figure.arm} | {autocast} | {figure.milliseconds:.1f} | {peak} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every model and write the files."""
    parser = argparse.ArgumentParser(prog="python -m ci.gpu_families", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--only", action="append", help="only this subject; repeatable")
    arguments = parser.parse_args()
    settle(arguments.device)
    figures = []
    for subject in SUBJECTS:
        if subject.kind == "model" and (not arguments.only or subject.name in arguments.only):
            for autocast in AUTOCAST:
                figures += [measure(subject, arm, autocast, arguments.device) for arm in ARMS]
                arguments.folder.mkdir(parents=True, exist_ok=True)
                content = json.dumps([asdict(figure) for figure in figures], indent=2)
                (arguments.folder / "families.json").write_text(content + "\n", encoding="utf-8")
                (arguments.folder / "families.md").write_text(table(figures), encoding="utf-8")
    print(table(figures), end="")


if __name__ == "__main__":
    main()
