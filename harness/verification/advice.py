"""What to say of findings about a model that nobody here wrote, where more is known than usual."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from harness.findings import CauseKind, Finding
from harness.row import Row

PRESERVE = "call wcn_ckpt.preserve_replay_state(model) once, after the model is built"
"""The one line that makes a model's own checkpointing safe."""

_ROUNDING = 1e-5
_WRITTEN = "modified by an inplace operation"


def observation(finding: Finding) -> str:
    """Return what a finding is about, without an index."""
    return finding.path.partition("[")[0]


def advised(row: Row, gone: Collection[str] = ()) -> Row:
    """Return a row with better causes and remedies.

    Args:
        row: The row.
        gone: Observations of which :data:`PRESERVE` was seen to remove the finding.
    """
    return replace(row, findings=tuple(_advised(finding, gone) for finding in row.findings))


def _advised(finding: Finding, gone: Collection[str]) -> Finding:
    if finding.path == "exception" and _WRITTEN in str(finding.got):
        if finding.kind is not CauseKind.ORDINARY_RAISED:
            return replace(
                finding,
                cause="the model changes a tensor in place that a boundary was given, and a replay "
                "needs it as it was",
                remedy="write to a copy (x = x.clone()), or put the write inside the boundary and "
                "before anything else reads it",
            )
    if finding.path.startswith("outputs/") and 0 < (finding.max_abs or 0) < _ROUNDING:
        return replace(
            finding,
            cause="with checkpointing on, the forward itself takes another path than without; the "
            "difference has the size of rounding, as that of another attention kernel "
            f"({finding.cause})",
            remedy="harmless unless the same bits are needed; then fix the kernel, for example "
            "with attn_implementation='eager'",
        )
    return replace(finding, remedy=PRESERVE) if observation(finding) in gone else finding
