"""How many cases of a suite see each fault, so that nobody thins a suite blindly.

A fault that is an arm is tried on the suite's own cases. A fault that needs a block of its own is
tried on the cases that the suite would have of that block if the blocks of the faults were its
subjects. Cases that a fault cannot reach by what it is (a norm's statistics where there is no norm)
are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.faults.fault import Fault
from harness.faults.subjects import OWN_SUBJECTS
from harness.ranks import RankPool
from harness.row import PASSING
from harness.runner import RunOptions, run_case
from matrix.case import Case
from matrix.subject import Subject
from matrix.subjects import SUBJECTS
from matrix.suites import Suite, select
from matrix.values import meets


@dataclass(frozen=True)
class Kills:
    """Which cases of a suite see a fault."""

    fault: Fault
    reached: int
    """How many cases it can reach."""
    tried: tuple[str, ...]
    """Ids of those that were tried: all of them, or a sample."""
    seen_by: tuple[str, ...]
    """Those that did not pass."""

    @property
    def text(self) -> str:
        """For example ``12 of 20``, or ``12 of 20 (611)`` for a sample of 611 cases."""
        return count_text(len(self.seen_by), len(self.tried), self.reached)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and the cases as JSON shows them."""
        return {
            "fault": self.fault.name,
            "reached": self.reached,
            "tried": len(self.tried),
            "seen": len(self.seen_by),
            "seen_by": list(self.seen_by),
        }


def count_text(seen: int, tried: int, reached: int) -> str:
    """Return for example ``12 of 20``, or ``12 of 20 (611)`` for a sample of 611 cases."""
    return f"{seen} of {tried}" + (f" ({reached})" if tried < reached else "")


def cases_for(fault: Fault, suite: Suite, *, seed: int = 0) -> tuple[Case, ...]:
    """Return the cases of a suite that a fault can reach.

    Args:
        fault: The fault.
        suite: The suite.
        seed: Seed of its array.
    """
    own = set(fault.subjects) <= set(OWN_SUBJECTS)
    return tuple(
        case
        for case in _cases(suite, OWN_SUBJECTS if own else SUBJECTS, seed)
        if meets(case.cell, fault.reach) and (not own or case.subject in fault.subjects)
    )


def kill_matrix(
    faults: Iterable[Fault],
    suite: Suite,
    pool: RankPool,
    *,
    seed: int = 0,
    sample: int | None = None,
) -> Iterator[Kills]:
    """Try faults on the cases of a suite; what differs is not looked into.

    Args:
        faults: The faults.
        suite: The suite.
        pool: The ranks.
        seed: Seed of the suite's array and of the run.
        sample: Most cases to try of each fault, spread evenly over the suite; None for all.

    Yields:
        For each fault that can run here, which cases see it.

    Raises:
        harness.ranks.RankStartError: If no ranks can be started.
    """
    for fault in faults:
        if fault.needs_cuda:
            continue
        reached = cases_for(fault, suite, seed=seed)
        cases = _spread(reached, sample)
        seen = tuple(case.id for case in cases if _is_seen(fault, case, pool, seed))
        yield Kills(fault, len(reached), tuple(case.id for case in cases), seen)


def kills_table(suite: str, kills: Sequence[Kills]) -> str:
    """Return the counts as a Markdown table.

    Args:
        suite: Name of the suite.
        kills: The counts.
    """
    lines = [f"| fault | cases of `{suite}` that see it |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{item.fault.name}` | {item.text} |" for item in kills)])


def _is_seen(fault: Fault, case: Case, pool: RankPool, seed: int) -> bool:
    options = RunOptions(
        arm=fault.judged_arm, seed=seed, case_timeout=fault.case_timeout, localized=False
    )
    return run_case(case, pool, options).outcome not in PASSING


def _spread(cases: tuple[Case, ...], most: int | None) -> tuple[Case, ...]:
    if most is None or most >= len(cases):
        return cases
    return tuple(cases[index * len(cases) // most] for index in range(most))


@functools.cache
def _cases(suite: Suite, subjects: tuple[Subject, ...], seed: int) -> tuple[Case, ...]:
    return select(suite, subjects=subjects, seed=seed).cases
