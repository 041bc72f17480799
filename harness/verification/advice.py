"""What to say of findings about a model that nobody here wrote, where more is known than usual."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from harness.findings import CauseKind, Finding
from harness.row import BROKEN, Row

PRESERVE = "call wcn_ckpt.preserve_replay_state(model) once, after the model is built"
"""The one line that makes a model's own checkpointing safe."""

NON_REENTRANT = (
    "make its checkpoint calls non-reentrant, use_reentrant=False, and then call "
    "wcn_ckpt.preserve_replay_state(model) once, after the model is built"
)
"""The same for a model whose checkpointing is reentrant."""

_REENTRANT = "makes a checkpoint call with use_reentrant="
_ROUNDING = 1e-5
_VAGUE = {
    kind.value for kind in (CauseKind.UNKNOWN, CauseKind.EXCEPTION, CauseKind.ORDINARY_RAISED)
}
"""Kinds of which one finding says nothing about another."""

_WRITTEN = "modified by an inplace operation"


def observation(finding: Finding) -> str:
    """Return what a finding is about, without an index."""
    return finding.path.partition("[")[0]


def removed(base: Row, remedied: Row | None) -> frozenset[str]:
    """Return what :data:`PRESERVE` was seen to remove: observations, and kinds of causes.

    Args:
        base: A case without it.
        remedied: The same case with it; None where it was not tried.
    """
    if remedied is None or base.outcome in BROKEN:
        return frozenset()
    if not (remedied.passed or remedied.outcome == "differs"):
        return frozenset()
    return _seen_in(base) - _seen_in(remedied)


def _seen_in(row: Row) -> frozenset[str]:
    kinds = {finding.kind.value for finding in row.findings} - _VAGUE
    return frozenset({*map(observation, row.findings), *kinds})


def refused_as_reentrant(row: Row) -> bool:
    """Tell whether :data:`PRESERVE` was refused in a case, because checkpointing is reentrant."""
    return any(_REENTRANT in str(finding.got) for finding in row.findings)


def advised(row: Row, gone: Collection[str] = (), *, reentrant: bool = False) -> Row:
    """Return a row with better causes and remedies.

    Args:
        row: The row.
        gone: What :data:`PRESERVE` was seen to remove; see :func:`removed`.
        reentrant: Whether the judged checkpointing is reentrant.
    """
    findings = tuple(_advised(finding, gone) for finding in row.findings)
    if reentrant and not row.passed:
        findings = tuple(map(_non_reentrant, findings))
    return replace(row, findings=findings)


def _non_reentrant(finding: Finding) -> Finding:
    if finding.kind is CauseKind.ORDINARY_RAISED:
        return finding
    cause = f"its checkpointing is reentrant: {finding.cause}"
    return replace(finding, cause=cause, remedy=NON_REENTRANT)


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
    if finding.path == "exception" and finding.kind is CauseKind.EXCEPTION:
        return replace(
            finding,
            cause=f"{finding.cause}: {str(finding.got).partition(chr(10))[0]}",
            remedy="do as the message says; --out writes the traceback",
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
    if observation(finding) in gone or finding.kind.value in gone:
        return replace(finding, remedy=PRESERVE)
    return finding
