"""What the leader of ranks under torchrun tells them, and under which keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JOIN_SECONDS = 60.0
"""Time that the ranks get to form a process group."""

GRACE_SECONDS = 5.0
"""Time that a rank gets to report after another one failed, and to end a task that is ended."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the ranks are split from now on; ``size`` 0 ends them."""

    size: int
    """Ranks of a group: the first ``size`` ranks are group 0, and so on."""
    backend: str = "gloo"
    """One of :data:`harness.ranks.BACKENDS`."""
    status: int = 0
    """The exit status, where this is the end."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A task for the ranks of one group; ``task`` "" dissolves the group."""

    task: str
    payload: Any = None
    timeout: float = 0.0
    """Seconds."""
    generation: int = 0
    """Process group to be in; a new number means a new process group."""


def attempt_key(attempt: int, name: str) -> str:
    """Return the key of something that belongs to one start of the ranks."""
    return f"{attempt}/{name}"


def place_of(attempt: int, epoch: int, group: int, number: int) -> str:
    """Return the key of an order; its results are below it."""
    return attempt_key(attempt, f"{epoch}/{group}/{number}")


def result_key(place: str, rank: int) -> str:
    """Return the key of a rank's result; ``rank`` counts in its group."""
    return f"{place}/result-{rank}"


def failed_key(place: str) -> str:
    """Return the key that is there once some rank failed at an order."""
    return f"{place}/failed"


def free_key(place: str, rank: int) -> str:
    """Return the key that is there once a rank whose task was ended can take another."""
    return f"{place}/free-{rank}"
