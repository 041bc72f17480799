"""Runs cases on a pool of ranks and hands each row on as its case ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harness.arms import Arm
from harness.job import Job, make_job
from harness.ranks import Ranks
from harness.row import Row
from harness.verdict import combine, tolerances_of
from matrix.case import Case

JUDGE = "harness.judge:judge"
"""The task that the ranks run."""

LOAD_SECONDS = 60.0
"""Time that an arm gets to be loaded, however short the limit of a case is."""

COMPILE_SECONDS = 240.0
"""Time that inductor gets besides: 85 s were seen for a model of which it has nothing cached."""

_LOADS = "harness.importing:problem_with"


class ArmError(ValueError):
    """An arm cannot be loaded."""


def check_arm(arm: Arm, pool: Ranks, timeout: float) -> None:
    """Load an arm once, before cases are run with it.

    Args:
        arm: The arm.
        pool: The ranks.
        timeout: Seconds that loading may take.

    Raises:
        ArmError: If the arm cannot be loaded, or cannot be called.
        harness.ranks.RankStartError: If no ranks can be started.
    """
    for result in pool.run(_LOADS, arm.install, timeout):
        returned = result.status == "returned"
        problem = result.value if returned else f"loading it {result.status}: {result.error}"
        if problem is not None:
            raise ArmError(f"arm {arm.name!r} cannot be used: {problem}")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What holds for every case of a run."""

    arm: Arm
    """The arm that is judged."""
    seed: int = 0
    """Seed of the run."""
    case_timeout: float = 60.0
    """Seconds until a case counts as hung."""
    localized: bool = True
    """Whether what differs is looked into on a recorded run."""


def run_case(case: Case, pool: Ranks, options: RunOptions) -> Row:
    """Run one case on all ranks of a pool.

    Args:
        case: The case.
        pool: The ranks.
        options: What holds for the whole run.

    Returns:
        Its row, whatever happened to the ranks.

    Raises:
        harness.ranks.RankStartError: If no ranks can be started.
    """
    start = time.monotonic()
    arm = options.arm
    job = make_job(case, arm=arm.install, seed=options.seed, arm_arguments=arm.arguments)
    job = replace(job, localized=options.localized)
    results = pool.run(JUDGE, job, time_limit(job, options))
    verdict = combine(results)
    return Row(
        case=case.id,
        subject=case.subject.name,
        axes=case.assignment,
        seed=options.seed,
        arm=options.arm.name,
        ranks=pool.size,
        outcome=verdict.outcome,
        findings=verdict.findings,
        noise=verdict.noise,
        tolerances=tolerances_of(results),
        seconds=round(time.monotonic() - start, 6),
    )


def time_limit(job: Job, options: RunOptions) -> float:
    """Return the seconds after which a job counts as hung.

    Args:
        job: The job.
        options: What holds for the whole run.
    """
    compiling = COMPILE_SECONDS if job.program.compiled == "inductor" else 0.0
    return options.case_timeout + compiling


def run_cases(
    cases: Iterable[Case], pool: Ranks, options: RunOptions, *, stop_early: bool = False
) -> Iterator[Row]:
    """Run cases one after the other.

    Args:
        cases: The cases.
        pool: The ranks.
        options: What holds for the whole run.
        stop_early: End after the first case that did not go as expected.

    Yields:
        One row per case, as it ends.
    """
    for case in cases:
        row = run_case(case, pool, options)
        yield row
        if stop_early and not row.passed:
            return
