"""Finds what replays write that no comparison of the arms looks at."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from harness.arms import ORDINARY, Arm
from harness.findings import CauseKind, Finding
from harness.job import Job, make_job
from harness.ranks import Ranks
from harness.ranks.context import RankContext
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
        What only replays write. Nothing where a step raises.
    """
    from harness.checklist.step import Step
    from harness.verification.hidden_state import snapshot, written

    def of(arm: str) -> list[Written]:
        step = Step(job, arm, context.rank)
        step.timed()
        loss = step.forward()
        before = snapshot(step.module)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return written(before, snapshot(step.module))

    try:
        ordinary = {change.path for change in of(ORDINARY)}
        return [change for change in of(job.arm) if change.path not in ordinary]
    except Exception:
        return []  # the case itself says what raises


def with_hidden_writes(row: Row, case: Case, arm: Arm, ranks: Ranks, timeout: float) -> Row:
    """Add to the row of a case what its replays write besides what was compared.

    Args:
        row: The row.
        case: Its case.
        arm: The judged arm.
        ranks: Where to look.
        timeout: Seconds after which it is given up.

    Returns:
        The row, which differs where something was found.
    """
    if not row.passed and row.outcome != "differs":
        return row
    job = make_job(case, arm=arm.install, seed=row.seed, arm_arguments=arm.arguments)
    result = ranks.run(_TASK, job, timeout)[0]
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
        for path, before, after in (result.value if result.status == "returned" else ())
        if f"attributes/{path}".partition("[")[0] not in known
    ]
    return replace(row, outcome="differs", findings=(*row.findings, *new)) if new else row
