"""Runs verify: looks at the model, judges it at every axis that applies, and makes the report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from harness.arms import Arm
from harness.checklist.answers import checklist
from harness.checklist.figures import Measurement
from harness.job import make_job
from harness.ranks import RankPool
from harness.ranks.launch import Ranks
from harness.ranks.pool import RankResult
from harness.row import BROKEN, Row
from harness.runner import RunOptions, run_case
from harness.verification.advice import advised, refused_as_reentrant, removed
from harness.verification.axes import VERIFY_AXES, parse
from harness.verification.hidden_writes import with_hidden_writes
from harness.verification.inspected import INSPECT, Inspection, Problem, Question
from harness.verification.naming import importable_name, name_of
from harness.verification.plan import Plan, make_plan
from harness.verification.report import Report, is_inapplicable
from harness.verification.request import VerifyRequest
from harness.verification.suggesting import suggest
from matrix.case import Case
from matrix.suites import Plan as SuitePlan
from matrix.suites import Selection, Suite, select
from matrix.values import value_text

_MEASURE = "harness.checklist.measurement:measure"
_SUITE = Suite("verify", (SuitePlan(2),), "every pair of values that applies at least once")

Progress = Callable[[int, int, Row], None]
"""Called with how many cases are done, how many there are, and the newest row."""


def verify_request(request: VerifyRequest, progress: Progress | None = None) -> Report:
    """Verify a model.

    Args:
        request: What is asked.
        progress: Told about each case as it ends.

    Returns:
        The report; what is wrong with the request itself is in it too.

    Raises:
        RuntimeError: If a rank imports the file that calls this.
        harness.ranks.RankStartError: If no ranks can be started.
    """
    _refuse_on_a_rank()
    request, local = _importable(request)
    try:
        only = parse(request.axes)
    except ValueError as error:
        return _not_judged(name_of(request.target), Problem(text=str(error), bad_call=True))
    with _ranks(request, local) as ranks:
        found = _inspected(request, ranks)
        if isinstance(found, Problem):
            return _not_judged(name_of(request.target), found)
        if isinstance(found, RankResult):
            return _broken(name_of(request.target), found)
        plan = make_plan(request, found, None if local else ranks.size)
        if isinstance(plan, Problem):
            return _not_judged(found.name, plan)
        try:
            selection = select(
                _SUITE,
                subjects=[plan.subject],
                axes=VERIFY_AXES,
                only={"device": (request.device,), **only},
                seed=request.seed,
            )
        except ValueError as error:
            return _not_judged(found.name, Problem(text=f"--axis: {error}", bad_call=True))
        return _Verification(request, ranks, found, plan, selection, progress).report()


class _Verification:
    def __init__(
        self,
        request: VerifyRequest,
        ranks: Ranks,
        found: Inspection,
        plan: Plan,
        selection: Selection,
        progress: Progress | None,
    ) -> None:
        self._request = request
        self._ranks = ranks
        self._found = found
        self._plan = plan
        self._selection = selection
        self._progress = progress
        self._not_looked_into = False

    def report(self) -> Report:
        plan, request = self._plan, self._request
        base_case = Case.of(plan.subject, {"device": request.device}, VERIFY_AXES)
        base = with_hidden_writes(
            self._first(base_case), base_case, plan.arm, self._ranks, request.case_timeout
        )
        bare = self._bare(base_case, base)
        measured = self._measured(base_case)
        remedied = self._remedied(base_case, base)
        rows = [base]
        cases = [case for case in self._selection.cases if case.id != base_case.id]
        for number, case in enumerate(cases, start=2):
            # What the first case found was looked into; the others mostly find the same.
            row = self._row(case, localized=base.passed)
            rows.append(row)
            if self._progress is not None:
                self._progress(number, len(cases) + 1, row)
        reentrant = remedied is not None and refused_as_reentrant(remedied)
        gone = removed(base, remedied)
        rows = [advised(row, gone, reentrant=reentrant) for row in rows]
        if is_inapplicable(rows[0]):
            why = f"ordinary training raises: {str(rows[0].findings[0].got).partition(chr(10))[0]}"
            return _not_judged(self._found.name, Problem(text=why, bad_call=False))
        return Report(
            name=self._found.name,
            judged=plan.judged,
            checklist=checklist(self._found.name, rows[:1], measured),
            measurement=measured if isinstance(measured, Measurement) else None,
            base=rows[0],
            rows=tuple(rows),
            remedied=None if reentrant else remedied,
            bare=bare,
            use=plan.use,
            coverage=self._selection.coverage_text,
            left_out={
                ", ".join(narrowing.only): narrowing.reason for narrowing in plan.subject.narrowings
            },
            suggestion=suggest(request, self._found, plan, self._ranks)
            if request.suggest or request.budget is not None
            else None,
            notes=tuple(self._notes()),
        )

    def _first(self, case: Case) -> Row:
        """Run a case and look into what it finds, unless that takes too long or too much."""
        row = self._row(case)
        if row.outcome not in BROKEN:
            return row
        unlocalized = self._row(case, localized=False)
        if unlocalized.outcome in BROKEN:
            return row
        self._not_looked_into = True
        return unlocalized

    def _row(self, case: Case, arm: Arm | None = None, *, localized: bool = True) -> Row:
        options = RunOptions(
            arm=arm or self._plan.arm,
            localized=localized,
            seed=self._request.seed,
            case_timeout=self._request.case_timeout,
        )
        row = run_case(case, self._ranks, options)
        return replace(row, command=self._command(case))

    def _command(self, case: Case) -> str:
        words = [
            f"{axis.name}={value_text(value)}"
            for axis, value in zip(case.axes, case.values, strict=True)
            if len(axis.values) > 1 and axis.name != "device"
        ]
        return " ".join([self._request.command, *(f"--axis {shlex.quote(w)}" for w in words)])

    def _measured(self, case: Case) -> Measurement | str:
        arm = self._plan.arm
        job = make_job(case, arm=arm.install, seed=self._request.seed, arm_arguments=arm.arguments)
        result = self._ranks.run(_MEASURE, job, self._request.case_timeout)[0]
        if result.status == "returned":
            return result.value  # type: ignore[no-any-return]  # a task returns anything
        return f"the measured step {result.status}: {result.error}"

    def _remedied(self, case: Case, base: Row) -> Row | None:
        """Run the case again with the one line of ours, where there is something to remedy."""
        if self._plan.remedy is None or base.passed or is_inapplicable(base):
            return None
        return self._row(case, self._plan.remedy)

    def _bare(self, case: Case, base: Row) -> Row | None:
        """Run the case again with torch's checkpoint alone, where ours has nothing to mend."""
        if self._plan.bare is None or not base.passed:
            return None
        return self._row(case, self._plan.bare)

    def _notes(self) -> Iterator[str]:
        if self._not_looked_into:
            yield (
                "note: looking for what differs first did not come to an end in "
                f"{self._request.case_timeout:g} s, so that the causes say less than they could; "
                "give it more with --case-timeout"
            )
        unused = self._found.unused_parameters
        if unused:
            shown = ", ".join(unused[:3]) + (", ..." if len(unused) > 3 else "")
            yield (
                f"note: {len(unused)} parameters get no gradient from this loss ({shown}), so DDP "
                "is run with find_unused_parameters=True"
            )


def _importable(request: VerifyRequest) -> tuple[VerifyRequest, bool]:
    """Replace callables by names; tell whether one has none, so that it runs in this process."""
    named: dict[str, Any] = {}
    for field in ("target", "inputs", "loss"):
        value = getattr(request, field)
        if value is None or isinstance(value, str):
            continue
        name = importable_name(value) if callable(value) else None
        if name is None:
            return request, True
        named[field] = name
    return replace(request, **named), False


@contextmanager
def _ranks(request: VerifyRequest, local: bool) -> Iterator[Ranks]:
    if local:
        from harness.verification.local_ranks import LocalRank

        yield LocalRank()
        return
    backend = "gloo" if request.device == "cpu" else "auto"
    with RankPool(request.ranks, backend=backend) as pool:
        yield pool


def _inspected(request: VerifyRequest, ranks: Ranks) -> Inspection | Problem | RankResult:
    question = Question(
        target=request.target,
        inputs_target=request.inputs,
        boundaries=request.boundaries,
        loss=request.loss,
        device=request.device,
    )
    results = ranks.run(INSPECT, question, request.case_timeout)
    failed = next((result for result in results if result.status != "returned"), None)
    return failed if failed is not None else results[0].value


def _not_judged(name: str, problem: Problem) -> Report:
    return Report(
        name=name,
        judged="",
        problem=problem.text,
        detail=problem.detail,
        bad_call=problem.bad_call,
    )


def _broken(name: str, result: RankResult) -> Report:
    how = "did not come to an end" if result.status == "stalled" else result.status
    return Report(
        name=name,
        judged="",
        problem=f"rank {result.rank} {how} while it looked at the model: {result.error}",
        detail=result.detail,
        broken=result.status in ("died", "stalled"),
    )


def _refuse_on_a_rank() -> None:
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", "") == "harness.ranks.worker":
        raise RuntimeError(
            "verify was called while a rank imported this file; put the call under "
            "'if __name__ == \"__main__\":'"
        )
