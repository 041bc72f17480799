"""Judges one job on one rank: runs the arms, compares them, asks the oracles."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from harness.arms import ORDINARY
from harness.causes import Explanation, because, explain, explain_raised
from harness.closed_form import running_statistics
from harness.consensus import any_rank, check_agreement, check_mean_gradient
from harness.dense_convolution import ConvolutionWatch, convolutions_equal_dense
from harness.determinism import settle
from harness.equivalence import Difference, equal
from harness.findings import BITWISE, CauseKind, Finding
from harness.job import Job
from harness.localize.located import Localization
from harness.localize.passes import localize, localize_alone
from harness.localize.recorder import Recorder
from harness.noise import Noise, measure_noise
from harness.oracles import (
    calls_as_expected,
    norms_of_backward,
    state_keys_unchanged,
    updates_equal_calls,
)
from harness.out_of_memory import is_out_of_memory
from harness.program import Watch, execute
from harness.ranks.context import RankContext
from harness.trace import Raised, Trace
from harness.verdict import RankVerdict
from matrix.expectations import ExpectedDifference, Fact
from matrix.programs import Program

_COLLECTIVE_ERROR = re.compile(r"gloo|nccl|ProcessGroup|DistNetworkError|DistBackendError", re.I)


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
        # What records modules and their replays would be traced itself.
        self._looks_into = job.localized and not job.program.traces_boundaries

    def verdict(self) -> RankVerdict:
        try:
            return self._judged()
        except _ArmRaisedError as error:
            arm, raised = error.arm, error.raised
        in_collective = bool(_COLLECTIVE_ERROR.search(raised.error))
        in_backward = raised.point.startswith("backward")
        looked_into = arm != ORDINARY and in_backward and not in_collective
        if self._connected or looked_into:
            self._context.abandon_group()
        self._context.unfit |= is_out_of_memory(raised.error)
        # What Dynamo leaves behind when a compiled step raises makes later cases of the rank fail.
        self._context.unfit |= self._job.program.compiled != "off"
        localization = None
        if looked_into and self._looks_into and not self._context.unfit:
            localization = localize_alone(self._job, self._rank)
        finding = self._raised_finding(arm, raised, localization)
        expected = self._expected("exception") if arm == ORDINARY else None
        if expected is not None:
            return RankVerdict(expected=[replace(finding, cause=expected.reason)])
        return RankVerdict(
            findings=[finding],
            raised_at=raised.at,
            in_collective=in_collective,
        )

    def _judged(self) -> RankVerdict:
        job, rank = self._job, self._rank
        ordinary = self._run(ORDINARY)
        convolutions = ConvolutionWatch()
        judged = self._run(job.arm, watch_norms=True, watch=convolutions.watch)
        differs = not equal(ordinary.points, judged.points)
        findings: list[Finding] = []
        unexpected: list[Finding] = []
        expected: list[Finding] = []
        if self._connected:
            findings, differs_anywhere = check_agreement(
                job.facts, job.program, judged, rank, differs
            )
        else:
            differs_anywhere = differs
        noise = None
        if differs_anywhere:
            noise = self._measured_noise(ordinary)
            beyond = noise.beyond(judged)
            unexplained = [d for d in beyond if not self._is_expected(d)]
            localization = self._localized(unexplained, noise.largest)
            for difference in beyond:
                explanation = explain(difference, ordinary, judged, localization)
                finding = self._arm_finding(difference, noise, explanation)
                (expected if self._is_expected(difference) else unexpected).append(finding)
            unrepeatable = noise.unrepeatable(_dtypes(job.program))
            if unrepeatable is not None and not self._is_expected(unrepeatable):
                unexpected = [self._arm_finding(unrepeatable, noise, _said_of(unrepeatable))]
            findings = unexpected + findings
        findings += calls_as_expected(job.program, ordinary, judged, rank)
        findings += state_keys_unchanged(judged, rank)
        left_out = norms_of_backward(ordinary, judged)
        findings += updates_equal_calls(judged, rank, left_out)
        findings += running_statistics(job.program, judged, rank, left_out)
        findings += convolutions_equal_dense(convolutions, rank)
        if Fact.GRADIENTS_ARE_MEAN in job.facts and self._expected("gradients") is None:
            alone = self._run(ORDINARY, follow=judged)
            allowed = noise.largest if noise else 0.0
            findings += check_mean_gradient(job.program, judged, alone, rank, allowed)
        if not expected:
            findings += [_missing(item, rank) for item in job.expected if item.must]
        return RankVerdict(
            findings=_once(findings),
            expected=_once(expected),
            noise=noise.largest if noise else None,
            tolerances=noise.by_path if noise else {},
        )

    def _measured_noise(self, ordinary: Trace) -> Noise:
        def run(watch: Watch | None) -> Trace:
            return self._run(ORDINARY, watch=watch)

        def anywhere(flag: bool) -> bool:
            return any_rank(flag) if self._connected else flag

        return measure_noise(ordinary, run, anywhere, self._job.case_seed)

    def _localized(self, unexpected: list[Difference], noise: float) -> Localization | None:
        """Look into unexpected differences; on every rank, if there are some on any."""
        if not self._looks_into:
            return None
        wanted = bool(unexpected)
        if self._connected:
            wanted = any_rank(wanted)
        if not wanted:
            return None
        return localize(self._run_recorded, self._job, self._rank, noise=noise)

    def _run_recorded(self, arm: str, recorder: Recorder) -> Trace:
        return self._run(arm, watch=recorder.watch)

    def _run(
        self,
        arm: str,
        *,
        watch_norms: bool = False,
        follow: Trace | None = None,
        watch: Watch | None = None,
    ) -> Trace:
        trace = execute(
            self._job, arm, self._rank, watch_norms=watch_norms, follow=follow, watch=watch
        )
        if trace.raised is not None:
            raised = trace.raised
            del trace
            raise _ArmRaisedError(arm, raised)
        return trace

    def _expected(self, group: str) -> ExpectedDifference | None:
        return next((item for item in self._job.expected if group in item.groups), None)

    def _is_expected(self, difference: Difference) -> bool:
        return self._expected(difference.group) is not None

    def _raised_finding(
        self, arm: str, raised: Raised, localization: Localization | None
    ) -> Finding:
        why = explain_raised(raised, ordinary=arm == ORDINARY, localization=localization)
        detail = f"{raised.error}\n{raised.traceback}"
        finding = Finding(
            rank=self._rank,
            point=raised.point,
            path="exception",
            expected="no exception",
            got=detail,
            tolerance_source="none",
            cause=why.cause,
            remedy=why.remedy,
            kind=why.kind,
            module=why.module,
            phase=why.phase,
            source_rank=why.source_rank,
        )
        if why.located is None:
            return finding
        return replace(
            finding,
            path=f"replay/{why.located.path}",
            expected=why.located.expected,
            got=f"{why.located.got}\n{detail}",
            max_abs=why.located.max_abs,
        )

    def _arm_finding(
        self, difference: Difference, noise: Noise, explanation: Explanation
    ) -> Finding:
        expected = self._expected(difference.group)
        tolerance = noise.tolerance(difference)
        return Finding(
            rank=self._rank,
            point=difference.point,
            path=difference.path,
            expected=difference.expected,
            got=difference.got,
            max_abs=difference.max_abs,
            tolerance=tolerance,
            tolerance_source=noise.source if tolerance else BITWISE,
            cause=explanation.cause if expected is None else f"expected: {expected.reason}",
            remedy=explanation.remedy if expected is None else "none needed",
            kind=explanation.kind,
            module=explanation.module,
            phase=explanation.phase,
            source_rank=explanation.source_rank,
        )


def _said_of(unrepeatable: Difference) -> Explanation:
    return because(
        CauseKind.NOT_REPEATABLE,
        "nothing can be said about checkpointing here: without it, training from one seed gives "
        f"outputs that differ by {unrepeatable.max_abs:.3g}, far more than rounding",
    )


def _dtypes(program: Program) -> list[torch.dtype]:
    sharding = program.sharding
    names = (program.autocast, None if sharding is None else sharding.mixed_precision)
    return [getattr(torch, name) for name in names if name]


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
        kind=CauseKind.NEVER_REPLAYED,
    )


def _once(findings: list[Finding]) -> list[Finding]:
    """Keep the first finding about each observation; later points only repeat it."""
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.path.partition("[")[0], finding)
    return list(first.values())
