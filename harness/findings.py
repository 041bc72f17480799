"""Findings: what was not as expected, where, why and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Scalar = float | int | str | bool | None
"""How values stand in a finding."""

BITWISE = "bitwise"
"""Tolerance source of comparisons that allow no difference at all."""

NEVER_REPLAYED = "replays"
"""Path of the finding that says that nothing was replayed."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was not as expected."""

    rank: int
    """The rank that saw it."""
    point: str
    """Where in the program, for example ``backward[0]``."""
    path: str
    """What: ``group/name``, and for a tensor the index of the first difference, as in
    ``buffers/norm.running_mean[3]``."""
    expected: Scalar
    """The expected value, at that index."""
    got: Scalar
    """The value seen, at that index."""
    max_abs: float | None = None
    """Largest absolute difference over the whole tensor; None where there is no number."""
    tolerance: float = 0.0
    """Largest absolute difference that would have passed."""
    tolerance_source: str = BITWISE
    """Where the tolerance comes from."""
    cause: str
    """Why, as far as it can be told."""
    remedy: str
    """What to do about it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as it stands in a row of the results file."""
        return asdict(self)
