"""The six points, as data, and what an answer to one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["pass", "finding", "not measured"]
"""How a point was answered."""


@dataclass(frozen=True)
class Point:
    """One thing to check."""

    number: int
    """From 1 to 6."""
    name: str
    """What it is about, in a few words."""
    question: str
    """What is asked, in one sentence."""


BOUNDARIES = Point(1, "boundaries", "Does checkpointing reach any boundary at all?")
EQUALITY = Point(
    2, "same numbers", "With dropout off, are outputs and gradients those of ordinary training?"
)
CALLS = Point(
    3, "forward calls", "Is each boundary computed once in forward and once more in backward?"
)
TYPES = Point(4, "inputs and outputs", "Was every type of input and output that it takes compared?")
COSTS = Point(
    5, "memory and time", "How much memory and time does a whole training step take in both arms?"
)
STATE = Point(
    6,
    "mutable state",
    "Are buffers, attributes, caches, counters and random order left as ordinary training leaves "
    "them?",
)

POINTS: tuple[Point, ...] = (BOUNDARIES, EQUALITY, CALLS, TYPES, COSTS, STATE)
"""The points, in order."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was found out about one point."""

    point: Point
    """The point."""
    status: Status
    """How it was answered."""
    text: str
    """What was seen, in one sentence."""
    cause: str = ""
    """Why, where it is a finding."""
    remedy: str = ""
    """What to do, where it is a finding."""

    @property
    def lines(self) -> list[str]:
        """The answer in plain words: one line, and the cause and the remedy of a finding."""
        lines = [f"{self.point.number}. {self.point.name}: {self.status}: {self.text}"]
        if self.status == "finding":
            lines += [f"   cause: {self.cause}", f"   remedy: {self.remedy}"]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON has it."""
        return {**asdict(self), "point": self.point.name, "number": self.point.number}


@dataclass(frozen=True, kw_only=True)
class Checklist:
    """The answers to all six points for one model or family."""

    name: str
    """What they are about."""
    answers: tuple[Answer, ...]
    """One for each point, in order."""

    @property
    def findings(self) -> Sequence[Answer]:
        """The answers that are findings."""
        return [answer for answer in self.answers if answer.status == "finding"]

    @property
    def unanswered(self) -> Sequence[Answer]:
        """The answers that are none."""
        return [answer for answer in self.answers if answer.status == "not measured"]

    @property
    def summary(self) -> str:
        """The statuses in a few words."""
        if not self.findings:
            missing = [answer.point.name for answer in self.unanswered]
            return "pass" + (f", not measured: {', '.join(missing)}" if missing else "")
        return f"finding: {', '.join(answer.point.name for answer in self.findings)}"
