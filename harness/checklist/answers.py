"""Makes an answer to each point out of the rows of cases and of a measured step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.checklist.figures import Measurement
from harness.checklist.points import (
    BOUNDARIES,
    CALLS,
    COSTS,
    EQUALITY,
    STATE,
    TYPES,
    Answer,
    Checklist,
    Point,
    Status,
)
from harness.findings import NEVER_REPLAYED, Finding
from harness.row import Row
from matrix.values import value_text

_POINT_OF = {
    NEVER_REPLAYED: BOUNDARIES,
    "calls": CALLS,
    "buffers": STATE,
    "attributes": STATE,
    "bindings": STATE,
    "generators": STATE,
    "modes": STATE,
    "random_state": STATE,
    "rebound": STATE,
    "state_dict": STATE,
}
"""Kind of observation -> the point it speaks to; every other one is about numbers."""

_NO_DROPOUT = ("off", "0.0")
_MOST_SHOWN = 4


def checklist(name: str, rows: Sequence[Row], measurement: Measurement | str) -> Checklist:
    """Answer all six points.

    Args:
        name: What the rows are about.
        rows: Rows of cases, with and without dropout.
        measurement: A measured step, or why there is none.

    Returns:
        The answers.
    """
    measured = None if isinstance(measurement, str) else measurement
    why = measurement if isinstance(measurement, str) else ""
    without = [row for row in rows if _dropout_is_off(row)]
    return Checklist(
        name=name,
        answers=(
            _boundaries(rows, measured, why),
            _judged(EQUALITY, without, "outputs, losses and gradients equal"),
            _calls(rows, measured, why),
            _types(measured, why),
            _costs(measured, why),
            _state(rows),
        ),
    )


def point_of(finding: Finding) -> Point:
    """Return the point that a finding speaks to."""
    return _POINT_OF.get(finding.path.partition("/")[0], EQUALITY)


def size_text(count: int | None) -> str:
    """Return a number of bytes as people read it."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def counted(number: int, what: str) -> str:
    """Return a number with its noun, such as ``2 cases``."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def _dropout_is_off(row: Row) -> bool:
    value = row.axes.get("dropout")
    return value is None or value_text(value) in _NO_DROPOUT


def _judged(point: Point, rows: Sequence[Row], what: str) -> Answer:
    if not rows:
        return Answer(point=point, status="not measured", text="no case without dropout was run")
    failing = _first_finding(point, rows)
    if failing is not None:
        row, finding, count = failing
        return _finding(
            point,
            f"{count} of {counted(len(rows), 'case')}; first {row.case}: rank {finding.rank}, "
            f"{finding.point}, {finding.path}: expected {_short(finding.expected)}, got "
            f"{_short(finding.got)}",
            finding,
        )
    expected = sum(row.outcome == "expected_difference" for row in rows)
    failing_elsewhere = sum(not row.passed for row in rows)
    text = f"{what} in {len(rows) - expected} of {counted(len(rows), 'case')}"
    if expected:
        text += f", {expected} differ as they must"
    if failing_elsewhere:
        text += f"; {failing_elsewhere} of them with findings at other points"
    return Answer(point=point, status="pass", text=text)


def _state(rows: Sequence[Row]) -> Answer:
    answer = _judged(STATE, rows, "buffers, attributes, generators and random order equal")
    unchecked = next((row.unchecked for row in rows if row.unchecked), "")
    if not unchecked:
        return answer
    status: Status = "not measured" if answer.status == "pass" else answer.status
    return replace(answer, status=status, text=f"{answer.text}, but {unchecked}")


def _first_finding(point: Point, rows: Iterable[Row]) -> tuple[Row, Finding, int] | None:
    found = [
        (row, next(f for f in row.findings if point_of(f) is point))
        for row in rows
        if not row.passed and any(point_of(f) is point for f in row.findings)
    ]
    return (*found[0], len(found)) if found else None


def _boundaries(rows: Sequence[Row], measured: Measurement | None, why: str) -> Answer:
    never = _first_finding(BOUNDARIES, rows)
    if measured is None and never is None:
        return Answer(point=BOUNDARIES, status="not measured", text=why)
    if never is not None or measured is None:
        assert never is not None
        text = f"nothing was replayed in {counted(never[2], 'case')}"
        return _finding(BOUNDARIES, text, never[1])
    kinds = Counter(boundary.kind for boundary in measured.boundaries)
    if not any(boundary.replays for boundary in measured.boundaries):
        return Answer(
            point=BOUNDARIES,
            status="finding",
            text=f"{measured.declared} modules say that checkpointing is enabled, and none was "
            "computed again in the backward",
            cause="checkpointing reaches no module that runs in training with gradients on",
            remedy="check which modules the switch reaches, or name blocks with --boundary",
        )
    names = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return Answer(point=BOUNDARIES, status="pass", text=f"{kinds.total()} found: {names}")


def _calls(rows: Sequence[Row], measured: Measurement | None, why: str) -> Answer:
    failing = _first_finding(CALLS, rows)
    if failing is not None:
        row, finding, count = failing
        text = (
            f"{counted(count, 'case')}; first {row.case}: {finding.path}: {finding.got}, expected "
        )
        return _finding(CALLS, f"{text}{finding.expected}", finding)
    if measured is None:
        return Answer(point=CALLS, status="not measured", text=why)
    wrong = [b for b in measured.boundaries if not b.wanted <= b.replays <= b.forwards]
    if wrong:
        shown = ", ".join(
            f"{b.name or 'the model'} ({b.kind}): {b.forwards} then {b.replays}"
            for b in wrong[:_MOST_SHOWN]
        )
        return Answer(
            point=CALLS,
            status="finding",
            text=f"computed in forward, then in backward: {shown}",
            cause="these modules were not computed exactly once more in backward",
            remedy="look for a boundary that is inside another one, switched off, or in eval mode",
        )
    total = sum(boundary.forwards for boundary in measured.boundaries)
    if not total:
        return Answer(point=CALLS, status="not measured", text="no boundary was computed")
    idle = total - sum(boundary.wanted for boundary in measured.boundaries)
    text = f"{counted(total, 'computation')} in forward, each repeated exactly once in backward"
    if idle:
        text += f", but for {idle} that no gradient comes to"
    return Answer(point=CALLS, status="pass", text=text)


def _types(measured: Measurement | None, why: str) -> Answer:
    if measured is None:
        return Answer(point=TYPES, status="not measured", text=why)
    text = f"in: {', '.join(measured.inputs)}; out: {', '.join(measured.outputs)}"
    if not measured.opaque:
        return Answer(point=TYPES, status="pass", text=text)
    return Answer(
        point=TYPES,
        status="finding",
        text=text,
        cause=f"tensors in {', '.join(measured.opaque)} cannot be found, by this lab and by "
        "torch's checkpoint",
        remedy="make it a dataclass, a container, or a class with plain attributes; or register it "
        "with torch.utils._pytree",
    )


def _costs(measured: Measurement | None, why: str) -> Answer:
    if measured is None:
        return Answer(point=COSTS, status="not measured", text=why)
    ordinary, judged = measured.ordinary, measured.judged
    peak = "allocator peak" if measured.device == "cuda" else "peak RSS of the rank"
    text = (
        f"kept for backward {size_text(judged.saved_bytes)} instead of "
        f"{size_text(ordinary.saved_bytes)}{_ratio(judged.saved_bytes, ordinary.saved_bytes)}; "
        f"{peak} +{size_text(judged.peak_bytes)} instead of +{size_text(ordinary.peak_bytes)}; "
        f"step {1e3 * judged.step:.1f} ms instead of {1e3 * ordinary.step:.1f} ms"
        f"{_ratio(judged.step, ordinary.step)}: forward {1e3 * judged.forward:.1f} / "
        f"{1e3 * ordinary.forward:.1f}, backward {1e3 * judged.backward:.1f} / "
        f"{1e3 * ordinary.backward:.1f}, optimizer {1e3 * judged.optimizer:.1f} / "
        f"{1e3 * ordinary.optimizer:.1f}"
    )
    saved, kept = judged.saved_bytes, ordinary.saved_bytes
    if saved is None or kept is None or saved <= kept:
        return Answer(point=COSTS, status="pass", text=text)
    return Answer(
        point=COSTS,
        status="finding",
        text=text,
        cause="the boundaries are so small that what they are given is more than what ordinary "
        "training keeps",
        remedy="choose larger blocks as boundaries, or train this model without checkpointing",
    )


def _ratio(judged: float | None, ordinary: float | None) -> str:
    return f" ({judged / ordinary:.2f} x)" if judged is not None and ordinary else ""


def _finding(point: Point, text: str, finding: Finding) -> Answer:
    return Answer(
        point=point, status="finding", text=text, cause=finding.cause, remedy=finding.remedy
    )


def _short(value: object) -> str:
    return str(value).partition("\n")[0][:200]
