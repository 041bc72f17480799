"""An explanation of a finding."""

from __future__ import annotations

from dataclasses import dataclass

from harness.findings import CauseKind
from harness.localize.located import Located
from harness.remedies import REMEDIES


@dataclass(frozen=True)
class Explanation:
    """A cause, where it came about, and its remedy."""

    cause: str
    """The cause in words."""
    remedy: str
    """What to do about it."""
    kind: CauseKind = CauseKind.UNKNOWN
    """The kind of cause."""
    module: str | None = None
    """Path of the submodule; None where it cannot be told."""
    phase: str | None = None
    """The pass; None where it cannot be told."""
    source_rank: int | None = None
    """The rank; None where it cannot be told."""
    located: Located | None = None
    """What was located, where the explanation rests on that."""


def because(
    kind: CauseKind,
    cause: str,
    *,
    module: str | None = None,
    phase: str | None = None,
    source_rank: int | None = None,
) -> Explanation:
    """Explain by a kind of cause, with the remedy of that kind."""
    return Explanation(cause, REMEDIES[kind], kind, module, phase, source_rank)


def because_located(located: Located, rank: int, cause: str | None = None) -> Explanation:
    """Explain by something that was located.

    Args:
        located: What was located.
        rank: The rank that sees its consequence.
        cause: Other words for it.
    """
    text = located.cause if cause is None else cause
    if located.rank != rank:
        text = f"on rank {located.rank}, {text}"
    return Explanation(
        text,
        REMEDIES[located.kind],
        located.kind,
        located.module,
        located.phase,
        located.rank,
        located,
    )
