"""Judges one job on one rank: runs the arms, compares them, asks the oracles."""

from __future__ import annotations

import re
from dataclasses import replace

from harness.arms import ORDINARY
from harness.causes import explain, explain_raised
from harness.closed_form import running_statistics
from harness.consensus import check_agreement, check_mean_gradient
from harness.determinism import settle
from harness.equivalence import Difference, differences, equal
from harness.findings import BITWISE, Finding
from harness.job import Job
from harness.oracles import calls_as_expected, state_keys_unchanged, updates_equal_calls
from harness.program import execute
from harness.ranks.context import RankContext
from harness.trace import Raised, Trace
from harness.verdict import RankVerdict
from matrix.expectations import ExpectedDifference, Fact

_COLLECTIVE_ERROR = re.compile(r"gloo|nccl|ProcessGroup|DistNetworkError|DistBackendError", re.I)
_Gaps = dict[tuple[str, str], float]


def judge(job: Job, context: RankContext) -> RankVerdict:
    """Run a job and judge it; a task for :meth:`harness.ranks.RankPool.run`.

    Args:
        job: The job.
        context: The rank it runs on.

    Returns:
        The verdict of this rank.
    """
    settle(job.program.device)
    return _Judgement(job, context).verdict()


class _ArmRaisedError(Exception):
    def __init__(self, arm: str, raised: Raised) -> None:
        super().__init__(arm)
        self.arm = arm
        self.raised = raised


class _Judgement:
    def __init__(self, job: Job, context: RankContext) -> None:
        self._job = job
        self._context = context
        self._rank = context.rank
        self._connected = job.program.wrapper != "none"

    def verdict(self) -> RankVerdict:
        try:
            return self._judged()
        except _ArmRaisedError as error:
            arm, raised = error.arm, error.raised
        if self._connected:
            self._context.abandon_group()
        finding = self._raised_finding(arm, raised)
        expected = self._expected("exception") if arm == ORDINARY else None
        if expected is not None:
            return RankVerdict(expected=[replace(finding, cause=expected.reason)])
        return RankVerdict(
            findings=[finding],
            raised_at=raised.at,
            in_collective=bool(_COLLECTIVE_ERROR.search(raised.error)),
        )

    def _judged(self) -> RankVerdict:
        job, rank = self._job, self._rank
        ordinary = self._run(ORDINARY)
        judged = self._run(job.arm, watch_norms=True)
        differs = not equal(ordinary.points, judged.points)
        findings: list[Finding] = []
        expected: list[Finding] = []
        if self._connected:
            findings, differs_anywhere = check_agreement(
                job.facts, job.program, judged, rank, differs
            )
        else:
            differs_anywhere = differs
        noise = None
        gaps: _Gaps = {}
        if differs_anywhere:
            again = self._run(ORDINARY)
            gaps = _largest_gaps(differences(ordinary.points, again.points))
            noise = max(gaps.values(), default=0.0)
        if differs:
            unexpected, expected = self._arm_findings(ordinary, judged, gaps)
            findings = unexpected + findings
        findings += calls_as_expected(job.program, ordinary, judged, rank)
        findings += state_keys_unchanged(judged, rank)
        findings += updates_equal_calls(judged, rank)
        findings += running_statistics(job.program, judged, rank)
        if Fact.GRADIENTS_ARE_MEAN in job.facts and self._expected("gradients") is None:
            alone = self._run(ORDINARY, follow=judged)
            findings += check_mean_gradient(job.program, judged, alone, rank, noise or 0.0)
        if not expected:
            findings += [_missing(item, rank) for item in job.expected if item.must]
        return RankVerdict(findings=_once(findings), expected=_once(expected), noise=noise)

    def _run(self, arm: str, *, watch_norms: bool = False, follow: Trace | None = None) -> Trace:
        trace = execute(self._job, arm, self._rank, watch_norms=watch_norms, follow=follow)
        if trace.raised is not None:
            raised = trace.raised
            del trace
            raise _ArmRaisedError(arm, raised)
        return trace

    def _expected(self, group: str) -> ExpectedDifference | None:
        return next((item for item in self._job.expected if group in item.groups), None)

    def _raised_finding(self, arm: str, raised: Raised) -> Finding:
        cause, remedy = explain_raised(raised, ordinary=arm == ORDINARY)
        return Finding(
            rank=self._rank,
            point=raised.point,
            path="exception",
            expected="no exception",
            got=f"{raised.error}\n{raised.traceback}",
            tolerance_source="none",
            cause=cause,
            remedy=remedy,
        )

    def _arm_findings(
        self, ordinary: Trace, judged: Trace, gaps: _Gaps
    ) -> tuple[list[Finding], list[Finding]]:
        """Return what differs without and with a reason to expect it."""
        findings: tuple[list[Finding], list[Finding]] = ([], [])
        for difference in differences(ordinary.points, judged.points):
            tolerance = gaps.get((difference.group, difference.name), 0.0)
            if difference.max_abs is not None and difference.max_abs <= tolerance:
                continue
            expected = self._expected(difference.group)
            cause, remedy = explain(difference, ordinary, judged)
            findings[expected is not None].append(
                Finding(
                    rank=self._rank,
                    point=difference.point,
                    path=difference.path,
                    expected=difference.expected,
                    got=difference.got,
                    max_abs=difference.max_abs,
                    tolerance=tolerance,
                    tolerance_source="measured: the ordinary arm run twice differs from itself"
                    if tolerance
                    else BITWISE,
                    cause=cause if expected is None else f"expected: {expected.reason}",
                    remedy=remedy if expected is None else "none needed",
                )
            )
        return findings


def _missing(item: ExpectedDifference, rank: int) -> Finding:
    return Finding(
        rank=rank,
        point="end",
        path=item.groups[0],
        expected="a difference between the arms",
        got="none",
        tolerance_source="none",
        cause=f"the arms are equal where they cannot be: {item.reason}",
        remedy="check that the option reaches the checkpoint, or that the difference is gone for "
        "good",
    )


def _largest_gaps(found: list[Difference]) -> _Gaps:
    gaps: _Gaps = {}
    for difference in found:
        if difference.max_abs is not None:
            key = (difference.group, difference.name)
            gaps[key] = max(gaps.get(key, 0.0), difference.max_abs)
    return gaps


def _once(findings: list[Finding]) -> list[Finding]:
    """Keep the first finding about each observation; later points only repeat it."""
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.path.partition("[")[0], finding)
    return list(first.values())
