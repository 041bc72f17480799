"""Measures candidates for boundaries on ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.arms import Arm, arm_named
from harness.checklist.figures import Measurement
from harness.job import make_job
from harness.ranks import Ranks
from harness.runner import RunOptions, run_case
from harness.verification.axes import VERIFY_AXES
from harness.verification.hidden_writes import with_hidden_writes
from harness.verification.inspected import Inspection
from harness.verification.plan import Plan
from harness.verification.request import VerifyRequest
from harness.verification.suggestion import OWN, Choice, Suggestion, growing
from matrix.case import Case

_MEASURE = "harness.checklist.measurement:measure"
_MADE = arm_named("checkpointed")


def suggest(request: VerifyRequest, found: Inspection, plan: Plan, ranks: Ranks) -> Suggestion:
    """Measure what could be boundaries of a model.

    Args:
        request: What verify was asked.
        found: What the model has.
        plan: What is judged of it; its subject is used with other boundaries.
        ranks: Where to measure.

    Returns:
        Each candidate, sets of the first one that grow, and the pick for a budget.
    """
    choose = _chooser(request, plan, ranks)
    candidates = tuple(
        choose(_label(candidate.pattern, len(candidate.names)), candidate.names, _MADE)
        for candidate in found.candidates
    )
    if plan.arm.install != _MADE.install:
        candidates = (choose(OWN, (), plan.arm), *candidates)
    blocks = found.candidates[0].names if found.candidates else ()
    sets = [
        choose(f"{len(names)} of {len(blocks)} blocks", names, _MADE) for names in growing(blocks)
    ]
    ordinary = _ordinary(candidates)
    return Suggestion(
        candidates=candidates,
        sets=(*ordinary, *(sets if len(blocks) > 1 else ())),
        budget=request.budget,
    )


def _chooser(
    request: VerifyRequest, plan: Plan, ranks: Ranks
) -> Callable[[str, tuple[str, ...], Arm], Choice]:
    def choose(label: str, names: tuple[str, ...], arm: Arm) -> Choice:
        subject = replace(plan.subject, arguments={**plan.subject.arguments, "boundaries": names})
        case = Case.of(subject, {"device": request.device}, VERIFY_AXES)
        options = RunOptions(
            arm=arm, seed=request.seed, case_timeout=request.case_timeout, localized=False
        )
        row = run_case(case, ranks, options)
        row = with_hidden_writes(row, case, arm, ranks, request.case_timeout)
        job = make_job(case, arm=arm.install, seed=request.seed, arm_arguments=arm.arguments)
        result = ranks.run(_MEASURE, job, request.case_timeout)[0]
        why = row.unchecked if row.passed else row.findings[0].cause
        if result.status != "returned":
            return Choice(
                label=label,
                boundaries=names,
                kept_bytes=None,
                saved_bytes=None,
                step=0.0,
                recompute=0.0,
                safe=False,
                why=why or result.error,
            )
        return _choice(label, names, result.value, safe=row.passed and not row.unchecked, why=why)

    return choose


def _choice(
    label: str, names: tuple[str, ...], measured: Measurement, *, safe: bool, why: str
) -> Choice:
    kept, ordinary = measured.judged.saved_bytes, measured.ordinary.saved_bytes
    return Choice(
        label=label,
        boundaries=names,
        kept_bytes=kept,
        saved_bytes=None if kept is None or ordinary is None else ordinary - kept,
        step=measured.judged.step,
        recompute=measured.judged.step - measured.ordinary.step,
        safe=safe,
        why=why,
    )


def _ordinary(candidates: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return ordinary training, as it was measured beside the first candidate."""
    first = next((c for c in candidates if c.kept_bytes is not None), None)
    if first is None or first.kept_bytes is None or first.saved_bytes is None:
        return ()
    return (
        Choice(
            label="none",
            boundaries=(),
            kept_bytes=first.kept_bytes + first.saved_bytes,
            saved_bytes=0,
            step=first.step - first.recompute,
            recompute=0.0,
            safe=True,
        ),
    )


def _label(pattern: str, count: int) -> str:
    return "the whole model" if pattern == "." else f"{count} {pattern}"
