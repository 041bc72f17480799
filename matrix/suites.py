"""Named selections of cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matrix.axes import AXES, Axis, axis_named
from matrix.case import Case
from matrix.constraints import CONSTRAINTS, Constraint
from matrix.covering import Coverage, coverage, covering_rows
from matrix.subjects import SUBJECTS, Subject
from matrix.values import Value


@dataclass(frozen=True)
class Suite:
    """How much of the matrix is run."""

    name: str
    """As in ``--suite``."""
    strength: int | None
    """Every combination of values of this many factors is run at least once; None for the full
    product. The subject is a factor like the axes."""
    doc: str
    """What it is for, in one line."""


SUITES: tuple[Suite, ...] = (
    Suite("smoke", 2, "every pair of values at least once; the default"),
    Suite("card", None, "the full product of all axes on all subjects"),
)
"""All suites."""


@dataclass(frozen=True)
class Selection:
    """The cases of one run."""

    cases: tuple[Case, ...]
    """In the order they run."""
    coverage: Coverage
    """What they cover."""


def suite_named(name: str) -> Suite:
    """Return the suite called ``name``.

    Raises:
        ValueError: If there is none; the message lists the valid names.
    """
    for suite in SUITES:
        if suite.name == name:
            return suite
    valid = ", ".join(suite.name for suite in SUITES)
    raise ValueError(f"no suite {name!r}; valid suites: {valid}")


def select(
    suite: Suite,
    *,
    subjects: Sequence[Subject] = SUBJECTS,
    axes: tuple[Axis, ...] = AXES,
    only: Mapping[str, tuple[Value, ...]] | None = None,
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
    seed: int = 0,
) -> Selection:
    """Choose the cases of a suite.

    Args:
        suite: How much is run.
        subjects: On what.
        axes: All axes, in canonical order.
        only: Axis name -> the values it is narrowed to.
        constraints: What is left out.
        seed: Varies the choice among equally good arrays.

    Returns:
        The cases and what they cover, within the narrowed axes.

    Raises:
        ValueError: If an axis does not exist, or constraints leave no case.
    """
    narrowed = dict(only or {})
    for name in narrowed:
        axis_named(name, axes)
    by_name = {subject.name: subject for subject in subjects}
    factors: dict[str, tuple[Value, ...]] = {"subject": tuple(by_name)}
    factors |= {axis.name: narrowed.get(axis.name, axis.values) for axis in axes}
    rows = covering_rows(factors, suite.strength, constraints=constraints, seed=seed)
    figure = coverage(rows, factors, suite.strength, constraints)
    if not rows:
        reasons = "; ".join(f"{rule.text}: {rule.reason}" for rule in constraints)
        raise ValueError(f"exclusions leave no case in {dict(narrowed)!r} ({reasons})")
    cases = tuple(
        Case.of(by_name[str(row["subject"])], {axis.name: row[axis.name] for axis in axes}, axes)
        for row in rows
    )
    return Selection(cases, figure)
