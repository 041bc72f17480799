"""Makes a failing case small: the fewest axis values away from their defaults that still fail.

The axes of the case that are not at their default are put back in ever smaller groups, as in delta
debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE
Transactions on Software Engineering 28, 2002), and in the end one by one until none can be spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from harness.report.terminal import show_findings
from harness.row import Row
from matrix.case import Case
from matrix.constraints import Constraint, constraints_on, exclusion
from matrix.values import value_text

Failure = tuple[str, str, str]
"""Outcome, kind of cause and kind of observation of the first finding."""


def failure_of(row: Row) -> Failure | None:
    """Return what is compared to tell whether two cases fail in the same way; None if it passed."""
    if row.passed:
        return None
    first = row.findings[0] if row.findings else None
    group = first.path.partition("/")[0] if first else ""
    return row.outcome, first.kind.value if first else "", group


@dataclass(frozen=True)
class Needed:
    """An axis value that the failure needs."""

    axis: str
    """Name of the axis."""
    value: str
    """The value, as in a case id."""
    without: str
    """How the case ends with the axis at its default, or why that is no case."""

    @property
    def text(self) -> str:
        """For example ``wrapper=ddp``."""
        return f"{self.axis}={self.value}"


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """A failing case from which no axis value can be taken away."""

    case: Case
    """The case."""
    needed: tuple[Needed, ...]
    """Its axes that are not at their default; without any of them it does not fail so."""
    runs: int
    """How many cases were run."""


def shrink_case(
    case: Case, ending: Callable[[Case], tuple[bool, str]], constraints: Sequence[Constraint] = ()
) -> Shrunk:
    """Find a smallest set of axis values with which a case still fails.

    Args:
        case: A case that fails.
        ending: Whether a case fails in the same way, and how it ends. It is asked once for each
            case.
        constraints: What is no case; those that hold for the subject by default.

    Returns:
        The case. It fails, and with any one of its remaining axes at its default it does not, or
        is no case.
    """
    rules = tuple(constraints) or constraints_on([case.subject], case.axes)
    known: dict[str, tuple[bool, str]] = {}

    def fails(candidate: Case) -> bool:
        if candidate.id not in known:
            known[candidate.id] = ending(candidate)
        return known[candidate.id][0]

    size = len(away_from_default(case))
    while size:
        smaller = next(filter(fails, _without_groups(case, size, rules)), None)
        if smaller is None:
            size //= 2
        else:
            case = smaller
            size = min(size, len(away_from_default(case)))
    needed = tuple(
        Needed(name, value_text(case.assignment[name]), _without_text(case, name, rules, known))
        for name in away_from_default(case)
    )
    return Shrunk(case=case, needed=needed, runs=len(known))


def shrink_and_show(case: Case, run: Callable[[Case], Row], console: Console) -> Row:
    """Shrink a case and print each case that is run, the smallest one and its findings.

    Args:
        case: The case.
        run: Runs a case.
        console: Where to print.

    Returns:
        The row of the smallest case that fails as the first one does; its own where it passes.
    """
    rows: dict[str, Row] = {}

    def run_once(candidate: Case) -> Row:
        if candidate.id not in rows:
            rows[candidate.id] = row = run(candidate)
            console.print(f"{row.outcome} {row.case}")
        return rows[candidate.id]

    wanted = failure_of(run_once(case))
    if wanted is None:
        console.print("it does not fail here, so there is nothing to shrink")
        return rows[case.id]

    def ending(candidate: Case) -> tuple[bool, str]:
        failure = failure_of(run_once(candidate))
        outcome = rows[candidate.id].outcome
        fails_otherwise = failure not in (None, wanted)
        return failure == wanted, f"{outcome} otherwise" if fails_otherwise else outcome

    shrunk = shrink_case(case, ending)
    before, after = len(away_from_default(case)), len(shrunk.needed)
    console.print(f"smallest: {after} of {before} axis values, after {len(rows)} runs")
    for needed in shrunk.needed:
        console.print(f"  {needed.text} is needed; without it: {needed.without}")
    show_findings(rows[shrunk.case.id], console, smallest=True)
    return rows[shrunk.case.id]


def away_from_default(case: Case) -> list[str]:
    """Return the names of the axes of a case that are not at their default, in canonical order."""
    return [a.name for a, v in zip(case.axes, case.values, strict=True) if v != a.default]


def _without_groups(case: Case, size: int, rules: tuple[Constraint, ...]) -> Iterator[Case]:
    names = away_from_default(case)
    for start in range(0, len(names), size):
        candidate = _without(case, names[start : start + size], rules)
        if candidate is not None:
            yield candidate


def _without(case: Case, names: Sequence[str], rules: tuple[Constraint, ...]) -> Case | None:
    """Put axes back to their defaults, with those that need them; None where that is no case."""
    values = {name: case.assignment[name] for name in away_from_default(case)}
    dropped = set(names)
    while dropped & values.keys():
        values = {name: value for name, value in values.items() if name not in dropped}
        candidate = Case.of(case.subject, values, case.axes)
        rule = exclusion(candidate.cell, rules)
        if rule is None:
            return candidate
        dropped = set(rule.when)
    return None


def _without_text(
    case: Case, name: str, rules: tuple[Constraint, ...], known: dict[str, tuple[bool, str]]
) -> str:
    candidate = _without(case, [name], rules)
    return "no case" if candidate is None else known[candidate.id][1]
