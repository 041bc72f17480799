"""Why two arms differ or one raises, where it came about, and what to do about it.

`traces` explains by the values that both arms saw, `search` by what a recorded run located,
`raised` by what was raised. What to do about each kind of cause is in `harness.remedies`.
"""

from __future__ import annotations

from harness.causes.explanation import Explanation, because
from harness.causes.raised import explain_raised
from harness.causes.search import explain
from harness.causes.traces import owner_of, phase_of

__all__ = [
    "Explanation",
    "because",
    "explain",
    "explain_raised",
    "owner_of",
    "phase_of",
]
