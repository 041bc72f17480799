"""What a fault on purpose is: what is broken, where it must show, and as what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from typing import Literal, get_args

from harness.arms import Arm
from harness.findings import CauseKind, Finding
from harness.row import Outcome, Row
from matrix.case import Case
from matrix.subject import Subject
from matrix.values import Condition, Value

Family = Literal[
    "statistics",
    "state",
    "random numbers",
    "autocast",
    "inputs",
    "gradients",
    "ranks",
    "switching",
]
"""What a fault is about."""

FAMILIES: tuple[Family, ...] = get_args(Family)

_REPORT = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)#(?P<number>\d+)")
_ADDRESS = re.compile(r"https://[\w./-]+")


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a fault must look like in the row of a case."""

    outcome: Outcome
    """How the case must end."""
    path: str
    """Shell pattern of the path, without an index, of the finding that must be there."""
    kind: CauseKind
    """The kind of cause it must be given."""
    also: tuple[CauseKind, ...] = ()
    """Kinds that other findings may have: what follows from the fault."""
    cause: str = ""
    """Regular expression that the text of the cause must contain."""

    def is_seen_in(self, row: Row) -> bool:
        """Tell whether a row ends as it must, with a finding at the right place."""
        return row.outcome == self.outcome and any(map(self._is_at, row.findings))

    def is_named_in(self, row: Row) -> bool:
        """Tell whether a row says rightly what it is, and nothing else beside it."""
        named = any(
            self._is_at(finding)
            and finding.kind == self.kind
            and re.search(self.cause, finding.cause) is not None
            for finding in row.findings
        )
        known = {self.kind, *self.also, CauseKind.UNKNOWN}
        return named and all(finding.kind in known for finding in row.findings)

    def _is_at(self, finding: Finding) -> bool:
        return fnmatchcase(finding.path.partition("[")[0], self.path)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which checkpointing, or a block that is checkpointed, is broken."""

    name: str
    """As in ``--fault``."""
    family: Family
    """What it is about."""
    report: str
    """The public report it stands for: ``owner/repository#number`` or an address."""
    doc: str
    """What is broken, in one line."""
    arm: str
    """Importable name of the arm that is judged."""
    subjects: tuple[Subject, ...]
    """The subjects on which it must show."""
    axes: Mapping[str, tuple[Value, ...]] = field(default_factory=dict, hash=False)
    """Axis name -> the values under which it must show; the others are at their default."""
    sign: Sign
    """What it must look like there."""
    reach: Condition = field(default_factory=dict, hash=False)
    """Where else it can show, as a condition on cells: elsewhere it touches nothing."""
    case_timeout: float = 60.0
    """Seconds until one of its cases counts as hung."""

    def __post_init__(self) -> None:
        """Refuse a report that is no link."""
        if not (_REPORT.fullmatch(self.report) or _ADDRESS.fullmatch(self.report)):
            raise ValueError(
                f"fault {self.name!r}: report {self.report!r} is neither 'owner/repository#number' "
                "nor an address"
            )

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases that must show it: each subject under each combination of the axes.

        Raises:
            ValueError: If an axis or a value does not exist.
        """
        return tuple(
            Case.of(subject, dict(zip(self.axes, values, strict=True)))
            for subject in self.subjects
            for values in product(*self.axes.values())
        )

    @property
    def needs_cuda(self) -> bool:
        """Whether its cases run on CUDA."""
        return "cuda" in self.axes.get("device", ())

    @property
    def judged_arm(self) -> Arm:
        """The arm under the name of the fault."""
        return Arm(self.arm, self.arm, self.doc)

    @property
    def report_address(self) -> str:
        """Where the report is."""
        found = _REPORT.fullmatch(self.report)
        if found is None:
            return self.report
        return f"https://github.com/{found['repository']}/issues/{found['number']}"
