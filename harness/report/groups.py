"""Failing rows that show the same thing, together: what a person calls one finding."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.row import Outcome, Row
from matrix.values import value_text

_DETAILS = re.compile(r"\d+(\.\d+)?|\(.*\)")


@dataclass(frozen=True)
class Group:
    """Rows with one outcome and one cause."""

    number: int
    """From 1 on, the group with most rows first."""
    rows: tuple[Row, ...]
    """Its rows, in the order of the run."""
    common: tuple[str, ...] = ()
    """`axis=value` that all of them have, and not all rows of the run."""

    @property
    def page(self) -> str:
        """Name of the group's own page."""
        return f"finding-{self.number}.html"

    @property
    def title(self) -> str:
        """The cause, as the first row has it."""
        findings = self.rows[0].findings
        return findings[0].cause if findings else self.outcome

    @property
    def outcome(self) -> Outcome:
        """How the rows ended."""
        return self.rows[0].outcome

    @property
    def kind(self) -> str:
        """The kind of cause."""
        findings = self.rows[0].findings
        return findings[0].kind.value if findings else "unknown"

    @property
    def module(self) -> str | None:
        """The submodule, where all rows name the same one."""
        modules = {row.findings[0].module if row.findings else None for row in self.rows}
        return modules.pop() if len(modules) == 1 else None

    @property
    def remedy(self) -> str:
        """What to do, as the first row has it."""
        findings = self.rows[0].findings
        return findings[0].remedy if findings else "replay the case"


def group_rows(rows: Sequence[Row]) -> list[Group]:
    """Group the rows that are not as expected by outcome and cause.

    Numbers and what is in brackets do not tell causes apart.

    Args:
        rows: The rows of a run.

    Returns:
        The groups, the one with most rows first.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if not row.passed:
            first = row.findings[0] if row.findings else None
            cause = _DETAILS.sub("", first.cause) if first else ""
            groups.setdefault((row.outcome, first.kind if first else "", cause), []).append(row)
    ordered = sorted(groups.values(), key=lambda members: -len(members))
    everywhere = _shared(rows)
    return [
        Group(
            number,
            tuple(members),
            tuple(sorted(_shared(members) - everywhere)) if len(members) > 1 else (),
        )
        for number, members in enumerate(ordered, start=1)
    ]


def _shared(rows: Sequence[Row]) -> set[str]:
    texts = [{f"{name}={value_text(value)}" for name, value in row.axes.items()} for row in rows]
    return set.intersection(*texts) if texts else set()
