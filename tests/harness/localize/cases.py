"""Judges a faulty block in this process, without ranks."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.findings import Finding
from harness.job import Job, make_job
from harness.judge import judge
from harness.ranks.context import RankContext
from harness.verdict import RankVerdict
from matrix.case import Case, parse_case

BLOCKS = f"{Path(__file__).parent}/faulty_blocks.py"


def case_of(block: str, axes: str = "", *, model: str = "Model") -> Case:
    case = parse_case(f"dropout,{axes}".rstrip(","))
    subject = replace(
        case.subject,
        name="faulty",
        factory=f"{BLOCKS}:{model}",
        arguments={"channels": 4, "block": block},
        input_arguments={"channels": 4},
    )
    return replace(case, subject=subject)


def job_of(block: str, arm: str, axes: str = "", *, model: str = "Model") -> Job:
    job = make_job(case_of(block, axes, model=model), arm=f"{BLOCKS}:{arm}", seed=0)
    steps = tuple(replace(step) for step in job.program.steps)
    # The ordinary arm checkpoints nothing here: whoever counts boundaries has nothing to count.
    return replace(job, configure=(), program=replace(job.program, steps=steps), expected=())


def verdict_of(block: str, arm: str, axes: str = "", **options: Any) -> RankVerdict:
    with tempfile.TemporaryDirectory() as folder:
        context = RankContext(0, 1, Path(folder), "gloo")
        return judge(job_of(block, arm, axes, **options), context)


def findings_of(block: str, arm: str, axes: str = "", **options: Any) -> dict[str, Finding]:
    """Return the findings by path, without an index."""
    verdict = verdict_of(block, arm, axes, **options)
    return {finding.path.partition("[")[0]: finding for finding in verdict.findings}
