"""Finds what replays write that no comparison of the arms looks at."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from harness.arms import ORDINARY, Arm
from harness.findings import CauseKind, Finding
from harness.job import Job, make_job
from harness.ranks import Ranks
from harness.ranks.context import RankContext
from harness.ranks.pool import RankResult
from harness.report.escape import one_line
from harness.row import Row
from matrix.case import Case

_TASK = "harness.verification.hidden_writes:hidden_writes"
_REMEDY = (
    "write it outside of replays, under 'if not wcn_ckpt.is_replaying():', or make it a buffer"
)


class Written(NamedTuple):
    """Something that has changed."""

    path: str
    """Where it is: a path from the model, ``module.global``, ``Class.attribute``, ..."""
    before: str
    after: str


def hidden_writes(job: Job, context: RankContext) -> list[Written]:
    """Run two steps of each arm and look at Python state before and after the second backward.

    Caches are filled by then. What the backward of ordinary training writes as well is left out.

    Args:
        job: The case; its program is not run.
        context: The rank this runs on.

    Returns:
        What only replays write.

    Raises:
        RuntimeError: If they write nothing of what was looked at, and that was not all.
    """
    from harness.checklist.step import Step
    from harness.verification.hidden_state import MOST_VALUES, snapshot, written

    counts = []

    def of(arm: str) -> list[Written]:
        step = Step(job, arm, context.rank)
        step.timed()
        loss = step.forward()
        before = snapshot(step.module)
        counts.append(len(before))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return written(before, snapshot(step.module))

    ordinary = {change.path for change in of(ORDINARY)}
    changed = [change for change in of(job.arm) if change.path not in ordinary]
    if not changed and max(counts) > MOST_VALUES:
        raise RuntimeError(
            f"the model, its classes and its functions hold more than the {MOST_VALUES} values "
            "that are compared"
        )
    return changed


def with_hidden_writes(row: Row, case: Case, arm: Arm, ranks: Ranks, timeout: float) -> Row:
    """Add to the row of a case what its replays write besides what was compared.

    Args:
        row: The row.
        case: Its case.
        arm: The judged arm.
        ranks: Where to look.
        timeout: Seconds after which it is given up.

    Returns:
        The row, which differs where something was found, and says so where nobody could look.
    """
    if not row.passed and row.outcome != "differs":
        return row
    job = make_job(case, arm=arm.install, seed=row.seed, arm_arguments=arm.arguments)
    results = ranks.run(_TASK, job, timeout)
    failed = [result for result in results if result.status != "returned"]
    if failed:
        # Other ranks are still busy because they wait for the one that raised or died.
        first = min(failed, key=lambda result: (result.status == "stalled", result.rank))
        return replace(row, unchecked=_unchecked(first, timeout))
    known = {finding.path.partition("[")[0] for finding in row.findings}
    new = [
        Finding(
            rank=0,
            point="backward[1]",
            path=f"attributes/{path}",
            expected=before,
            got=after,
            cause=f"a replay wrote '{path}' ({before} before the backward, {after} after it)",
            remedy=_REMEDY,
            kind=CauseKind.STATE_WRITTEN,
            phase="replay 1",
        )
        for path, before, after in results[0].value
        if f"attributes/{path}".partition("[")[0] not in known
    ]
    return replace(row, outcome="differs", findings=(*row.findings, *new)) if new else row


def _unchecked(result: RankResult, timeout: float) -> str:
    if result.status == "stalled":
        why = f"the step for it did not come to an end in {timeout:g} s"
        todo = "give it more with --case-timeout"
    else:
        happened = "raised" if result.status == "raised" else f"ended rank {result.rank}"
        why = f"the step for it {happened}: {result.error}"
        todo = (
            "make that pass, or read through the forward: what it writes besides buffers belongs "
            "under 'if not wcn_ckpt.is_replaying():'"
        )
    return f"what only replays write was not looked for: {one_line(why)}; {todo}"
