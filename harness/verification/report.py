"""The report of verify: the checklist in plain words, then the axes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.checklist.answers import counted
from harness.checklist.figures import Measurement
from harness.checklist.points import Checklist
from harness.findings import CauseKind, Finding
from harness.row import BROKEN, Row
from harness.verification.suggestion import Suggestion
from matrix.values import value_text

_MOST_CAUSES = 8
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What verify found out about a model."""

    name: str
    """Class of the model."""
    judged: str
    """What was judged: its own checkpointing, or which modules were made boundaries."""
    problem: str = ""
    """Why it could not be judged; empty where it was."""
    detail: str = ""
    """Traceback of the problem, where there is one."""
    bad_call: bool = False
    """Whether the problem is in what verify was asked."""
    broken: bool = False
    """Whether the problem is that a rank hung or crashed."""
    checklist: Checklist | None = None
    """The answers to the six points; None with a problem."""
    measurement: Measurement | None = None
    """A measured step of both arms; None where there is none."""
    base: Row | None = None
    """The case with every axis at its default."""
    rows: tuple[Row, ...] = ()
    """The cases of the axes, the one above included."""
    remedied: Row | None = None
    """The same case after the remedy that the findings name, where it was tried."""
    bare: Row | None = None
    """The same case with torch's checkpoint alone in place of wcn_ckpt's, where it was tried."""
    use: str = ""
    """The line of Python that trains in the way that was judged."""
    coverage: str = ""
    """What the cases cover."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Axis -> why it does not apply."""
    suggestion: Suggestion | None = None
    """What was measured of candidates for boundaries, where that was asked for."""
    notes: tuple[str, ...] = ()
    """Further lines: hints, suggestions."""

    @property
    def failing(self) -> list[Row]:
        """The cases with findings; where ordinary training itself raises, there is none."""
        return [row for row in self.rows if not row.passed and not is_inapplicable(row)]

    @property
    def passed(self) -> bool:
        """Whether all six points and all axes pass."""
        return self.exit_status == 0

    @property
    def exit_status(self) -> int:
        """0 all pass; 1 not all do; 2 the call is wrong; 3 a case hung or a rank crashed."""
        if self.problem:
            return 3 if self.broken else 2 if self.bad_call else 1
        if any(row.outcome in BROKEN for row in self.rows):
            return 3
        if self.failing:
            return 1
        asked = self.checklist
        return 1 if asked is not None and (asked.findings or asked.unanswered) else 0

    @property
    def findings(self) -> list[Finding]:
        """The findings of all cases, one for each cause and observation."""
        first: dict[tuple[str, str], Finding] = {}
        for row in self.failing:
            for finding in row.findings:
                first.setdefault((finding.path.partition("[")[0], finding.cause), finding)
        return list(first.values())

    @property
    def verdict(self) -> str:
        """The answer in a few words."""
        if self.problem:
            return "not judged"
        if self.exit_status == 0:
            return "safe to checkpoint: every check passed"
        if self.exit_status == 3:
            return "a case hung or a rank crashed"
        numbers = {finding.kind for finding in self.findings}
        what = "double updates" if CauseKind.REPEATED_UPDATE in numbers else "findings"
        if not self.failing and self.checklist is not None:
            if self.checklist.findings:
                return "the same numbers, with a finding in the checklist"
            missing = ", ".join(answer.point.name for answer in self.checklist.unanswered)
            return f"no finding, but not checked: {missing}, see below"
        return f"NOT safe to checkpoint as it is: {what}, see below"

    @property
    def text(self) -> str:
        """The report in plain words."""
        return "\n".join(self._lines())

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        return {
            "name": self.name,
            "judged": self.judged,
            "exit_status": self.exit_status,
            "problem": self.problem,
            "checklist": [a.to_dict() for a in self.checklist.answers] if self.checklist else [],
            "cases": [row.to_dict() for row in self.rows],
            "remedied": self.remedied.to_dict() if self.remedied else None,
            "bare": self.bare.to_dict() if self.bare else None,
            "use": self.use,
            "coverage": self.coverage,
            "left_out": dict(self.left_out),
            "suggestion": self.suggestion.to_dict() if self.suggestion else None,
            "notes": list(self.notes),
        }

    def _lines(self) -> Iterator[str]:
        yield f"{self.name}: {self.verdict}"
        if self.judged:
            yield f"judged: {self.judged}"
        if self.problem:
            yield self.problem
            return
        if self.use and self.exit_status == 0:
            yield f"to train like this: {self.use}"
        if self.bare is not None:
            said = _outcome_text(self.bare).partition(" (")[0]
            yield f"with torch.utils.checkpoint alone in its place: {said}"
        if self.checklist is not None:
            yield ""
            yield "checklist"
            for answer in self.checklist.answers:
                yield from answer.lines
        if self.remedied is not None:
            yield ""
            yield f"with that remedy, tried here: {_outcome_text(self.remedied)}"
        yield from self._axes_lines()
        if self.suggestion is not None:
            yield ""
            yield from self.suggestion.lines
        if self.notes:
            yield ""
            yield from self.notes

    def _axes_lines(self) -> Iterator[str]:
        if not self.rows:
            return
        yield ""
        judged = [row for row in self.rows if not is_inapplicable(row)]
        yield f"axes: {sum(row.passed for row in judged)} of {counted(len(judged), 'case')} pass"
        for axis, counts in _by_value(judged).items():
            if len(counts) > 1 and (not self.failing or _tells_apart(counts)):
                cells = ", ".join(
                    f"{value} {passed}/{total}" for value, (passed, total) in counts.items()
                )
                yield f"  {axis}: {cells}"
        causes = _by_cause(self.failing)
        for finding, rows in causes[:_MOST_CAUSES]:
            yield f"  {counted(len(rows), 'case')}: {finding.cause}"
            yield f"    first {rows[0].case}: rank {finding.rank}, {finding.point}, {finding.path}"
            yield f"    remedy: {finding.remedy}"
        if len(causes) > _MOST_CAUSES:
            yield f"  and {len(causes) - _MOST_CAUSES} more causes"
        for reason, rows in _inapplicable_by_reason(self.rows).items():
            where = f"in {counted(len(rows), 'case')}, where ordinary training raises"
            yield f"  not judged {where}: {reason}"
        for axis, why in self.left_out.items():
            yield f"  {axis}: left out, {why}"


def is_inapplicable(row: Row) -> bool:
    """Tell whether a case has no verdict because the ordinary arm itself raised in it."""
    return (
        row.outcome == "error"
        and bool(row.findings)
        and all(finding.kind is CauseKind.ORDINARY_RAISED for finding in row.findings)
    )


def _outcome_text(row: Row) -> str:
    if row.passed:
        return "all equal"
    finding = row.findings[0]
    return f"{row.outcome}: {finding.path}: {finding.cause}"


def _by_value(rows: Sequence[Row]) -> dict[str, dict[str, tuple[int, int]]]:
    table: dict[str, Counter[tuple[str, bool]]] = {}
    for row in rows:
        for axis, value in row.axes.items():
            table.setdefault(axis, Counter())[value_text(value), row.passed] += 1
    return {
        axis: {
            value: (counts[value, True], counts[value, True] + counts[value, False])
            for value in dict.fromkeys(value for value, _ in counts)
        }
        for axis, counts in table.items()
    }


def _tells_apart(counts: Mapping[str, tuple[int, int]]) -> bool:
    return len({passed > 0 for passed, _ in counts.values()}) > 1


def _by_cause(rows: Sequence[Row]) -> list[tuple[Finding, list[Row]]]:
    """Group rows by what they found, whatever layer and number it is about."""
    found: dict[str, tuple[Finding, list[Row]]] = {}
    for row in sorted(rows, key=lambda row: len(row.case)):
        for key, finding in {_kind_of(f): f for f in row.findings[::-1]}.items():
            found.setdefault(key, (finding, []))[1].append(row)
    return sorted(found.values(), key=lambda item: -len(item[1]))


def _kind_of(finding: Finding) -> str:
    """Return a cause without its numbers, and without the figures in brackets that follow it."""
    said = finding.cause.partition(" (")[0].replace("twice", "2 times")
    return _NUMBER.sub("#", said)


def _inapplicable_by_reason(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if is_inapplicable(row):
            reason = str(row.findings[0].got).partition("\n")[0]
            found.setdefault(reason, []).append(row)
    return found
