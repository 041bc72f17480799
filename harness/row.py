"""One case's result, as a line of the results file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from harness.findings import Finding
from matrix.values import Value

SCHEMA = 1
"""Version of the row format."""

Outcome = Literal[
    "equal", "differs", "expected_difference", "never_replayed", "error", "hung", "crashed"
]
"""How a case ended."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
PASSING: frozenset[str] = frozenset({"equal", "expected_difference"})
"""Outcomes that leave the exit status at 0."""
BROKEN: frozenset[str] = frozenset({"hung", "crashed"})
"""Outcomes of cases that did not come to a verdict."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case's result."""

    case: str
    """Id of the case."""
    subject: str
    """Name of the subject."""
    axes: Mapping[str, Value]
    """Axis name -> value, for every axis."""
    seed: int
    """Seed of the run; with the case id and the arm it replays the case."""
    arm: str
    """Name of the judged arm."""
    ranks: int
    """Number of ranks."""
    outcome: Outcome
    """How it ended."""
    findings: tuple[Finding, ...] = ()
    """What was not as expected, causes first."""
    noise: float | None = None
    """Largest difference of the ordinary arm from itself; None where it was not measured, because
    the arms are bitwise equal."""
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """``group/name`` -> largest difference allowed, of the tensors in which it is not bitwise."""
    seconds: float = 0.0
    """Wall time."""
    command: str = ""
    """The command that runs this case again, where that is not ``ckpt-lab replay``."""
    unchecked: str = ""
    """What could not be looked at although the case has a verdict, why, and what to do."""

    @property
    def passed(self) -> bool:
        """Whether the case ended as expected."""
        return self.outcome in PASSING

    @property
    def replay_command(self) -> str:
        """The command that runs this case again."""
        if self.command:
            return self.command
        arm = shlex.quote(self.arm)
        return f"ckpt-lab replay {self.case} --arm {arm} --seed {self.seed} --ranks {self.ranks}"

    @property
    def shrink_command(self) -> str:
        """The command that finds which of its axis values a failure needs; empty where it has none.

        Not offered where the case runs by a command of its own.
        """
        if self.command or "," not in self.case:
            return ""
        return self.replay_command.replace(" replay ", " shrink ", 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the results file."""
        return {
            "schema": SCHEMA,
            "case": self.case,
            "subject": self.subject,
            "axes": dict(self.axes),
            "seed": self.seed,
            "arm": self.arm,
            "ranks": self.ranks,
            "outcome": self.outcome,
            "findings": [finding.to_dict() for finding in self.findings],
            "noise": self.noise,
            "seconds": self.seconds,
            **({"tolerances": dict(self.tolerances)} if self.tolerances else {}),
            **({"command": self.command} if self.command else {}),
            **({"unchecked": self.unchecked} if self.unchecked else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """Read a row from the results file.

        Args:
            data: As returned by :meth:`to_dict`.

        Raises:
            ValueError: If it was written in another format, or has an unknown outcome.
            KeyError: If it has no findings.
            TypeError: If it is no mapping, or its fields are not those of a row.
        """
        if not isinstance(data, Mapping):
            raise TypeError(f"a row is a mapping, got {data!r}")
        if data.get("schema") != SCHEMA:
            raise ValueError(f"row has schema {data.get('schema')!r}; this version reads {SCHEMA}")
        fields = {key: value for key, value in data.items() if key != "schema"}
        findings = tuple(Finding(**finding) for finding in fields.pop("findings"))
        row = cls(findings=findings, **fields)
        if row.outcome not in OUTCOMES:
            raise ValueError(f"no outcome {row.outcome!r}; outcomes: {', '.join(OUTCOMES)}")
        if not isinstance(row.axes, Mapping):
            raise TypeError(f"axes are a mapping, got {row.axes!r}")
        return row


def exit_status(rows: list[Row]) -> int:
    """Return the exit status that a run's rows ask for.

    Returns:
        3 if a case hung or crashed, else 1 if one is not as expected, else 0.
    """
    if any(row.outcome in BROKEN for row in rows):
        return 3
    return 0 if all(row.passed for row in rows) else 1
