"""What a benchmark is: a named figure, the goal it is held to, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.bench.estimate import Estimate

Group = Literal["quick", "long"]
Verdict = Literal["pass", "fail", "undecided", "no goal"]

GROUPS: tuple[Group, ...] = ("quick", "long")
"""``quick`` is a few minutes in all; what takes longer alone is ``long``."""


class NotMeasurableError(RuntimeError):
    """A figure cannot be measured here; the message says what it needs."""


@dataclass(frozen=True)
class Measurement:
    """What one run of a benchmark gave.

    Args:
        estimate: the figure, with its interval.
        details: what it was computed from: numbers, texts, lists and mappings of them.
    """

    estimate: Estimate
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One named figure.

    Args:
        name: its name on the command line and in the output.
        group: ``quick`` or ``long``.
        unit: unit of the figure; ``ratio`` for a ratio.
        doc: what is measured over what, in one line.
        run: measures it. Takes the number of samples: interleaved pairs, rounds or runs.
        samples: how many samples it takes by itself.
        at_most: the goal, where smaller is better.
        at_least: the goal, where larger is better. Without either there is no goal: the figure
            explains others.

    Raises:
        ValueError: both goals are given, or the group is unknown.
    """

    name: str
    group: Group
    unit: str
    doc: str
    run: Callable[[int], Measurement]
    samples: int
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self) -> None:
        """Check the goal and the group."""
        if self.at_most is not None and self.at_least is not None:
            raise ValueError(f"{self.name}: a figure has one goal, got at_most and at_least")
        if self.group not in GROUPS:
            raise ValueError(f"{self.name}: the group is one of {GROUPS}, got {self.group!r}")

    def verdict(self, estimate: Estimate) -> Verdict:
        """Whether a figure reaches the goal: its whole interval has to lie on one side."""
        if self.at_most is not None:
            low, high = estimate.low - self.at_most, estimate.high - self.at_most
        elif self.at_least is not None:
            low, high = self.at_least - estimate.high, self.at_least - estimate.low
        else:
            return "no goal"
        if high <= 0:
            return "pass"
        return "fail" if low > 0 else "undecided"

    @property
    def goal_text(self) -> str:
        """The goal in words."""
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return f"at least {self.at_least:g}" if self.at_least is not None else "none"
