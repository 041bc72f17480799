"""The small cases that the lab's own figures are measured on, and two ways to run them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness.arms import arm_named
from harness.bench.benchmark import NotMeasurableError
from harness.job import Job, make_job
from harness.ranks import RankPool
from harness.runner import RunOptions, run_cases
from harness.store import Store
from matrix.axes import AXES
from matrix.case import Case
from matrix.subjects import subject_named
from matrix.suites import select, suite_named

BARE_LOOP = "harness.bench.bare_loop:run_jobs"
ARM = "checkpointed"
VARIED = (
    "bn_momentum",
    "running_stats",
    "broadcast_buffers",
    "autocast",
    "backward",
    "accumulation",
    "enable",
    "steps",
    "init_sync",
)
"""The axes of the tiny cases."""

_SECONDS = 600.0


def tiny_cases() -> list[Case]:
    """Return the DDP cases of the README's block in the smoke suite, other axes at their default.

    Cases that compile, shard or offload take as long as the operation that they try.
    """
    only = {axis.name: (axis.default,) for axis in AXES if axis.name not in VARIED}
    only["wrapper"] = ("ddp",)
    return list(select(suite_named("smoke"), subjects=[subject_named("readme")], only=only).cases)


def jobs_of(cases: Sequence[Case]) -> list[Job]:
    """Return the cases as ranks are sent them."""
    install = arm_named(ARM).install
    return [make_job(case, arm=install, seed=0) for case in cases]


def lab_seconds(cases: Sequence[Case], pool: RankPool, store: Store) -> float:
    """Run cases as the lab does, each row on disk; return how long it takes.

    Raises:
        NotMeasurableError: a case is not as expected: then this is no measure of anything.
    """
    options = RunOptions(arm=arm_named(ARM))
    start = time.monotonic()
    for row in run_cases(cases, pool, options):
        store.append(row)
        if not row.passed:
            raise NotMeasurableError(f"{row.case} is {row.outcome}; see: {row.replay_command}")
    return time.monotonic() - start


def bare_seconds(cases: Sequence[Case], pool: RankPool) -> float:
    """Run cases in a bare loop in the ranks; return how long the slower one takes.

    Raises:
        NotMeasurableError: a rank fails.
    """
    results = pool.run(BARE_LOOP, jobs_of(cases), _SECONDS)
    for result in results:
        if result.status != "returned":
            raise NotMeasurableError(f"the bare loop {result.status} on rank {result.rank}")
    return max(float(result.value) for result in results)
