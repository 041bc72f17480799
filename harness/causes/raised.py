"""Why an arm raised, by what it raised and where."""

from __future__ import annotations

import re
from dataclasses import replace

from harness.causes.explanation import Explanation, because, because_located
from harness.findings import CauseKind
from harness.localize.located import Localization
from harness.trace import Raised

_BY_TEXT: tuple[tuple[str, CauseKind, str], ...] = (
    (
        r"modified by an inplace operation",
        CauseKind.SAVED_TENSOR_WRITTEN,
        "a tensor that an earlier forward saved was written in place before its backward: "
        "restoring buffers with copy_ after a replay moves their version counters",
    ),
    (
        r"use_reentrant=True|[Cc]heckpointing is not compatible with \.grad\(\)",
        CauseKind.REENTRANT,
        "the reentrant variant of torch's checkpoint runs a backward pass of its own, which "
        "autograd.grad and inputs= cannot go through",
    ),
    (
        r"marked as ready twice|mark(ed)? a variable ready only once",
        CauseKind.REENTRANT,
        "a gradient was ready twice in one backward pass under DDP: the reentrant variant of "
        "torch's checkpoint does that",
    ),
    (
        r"backward through the graph a second time",
        CauseKind.GRAPH_FREED,
        "a graph was freed before its last backward pass",
    ),
    (
        r"does not require grad",
        CauseKind.GRADIENT_MISSING,
        "no gradient can flow: an output is detached, or was computed without recording gradients",
    ),
    (
        r"appears to not have been used in the graph",
        CauseKind.GRADIENT_MISSING,
        "a tensor takes no part in the graph: an output or an input is detached",
    ),
    (
        r"UnpreservedStateError",
        CauseKind.STATE_WRITTEN,
        "a replay wrote state that nothing preserves",
    ),
    (
        r"ReplayGuardError.*\b(argument|input|keyword)",
        CauseKind.INPUT_CHANGED,
        "an input moved between the forward and its replay, and the boundary refused to replay it",
    ),
    (
        r"ReplayGuardError",
        CauseKind.STATE_MOVED,
        "state moved between the forward and its replay, and the boundary refused to replay it",
    ),
    (
        r"'dtype': torch\.(?P<old>\w+)[^\n]*\n[^\n]*'dtype': torch\.(?!(?P=old)\b)\w+",
        CauseKind.DTYPE_DRIFT,
        "the replay computed a tensor in another dtype than the forward",
    ),
    (
        r"encountered during backward but not found in storage",
        CauseKind.ORDER_DRIFT,
        "under selective checkpointing the replay ran an operator that its forward did not, as for "
        "a cast that autocast had kept from before the block: under torch.autocast(..., "
        "cache_enabled=False) it keeps none",
    ),
    (
        r"CheckpointError",
        CauseKind.ORDER_DRIFT,
        "the replay did not save the same tensors as the forward",
    ),
)


def explain_raised(
    raised: Raised, *, ordinary: bool, localization: Localization | None = None
) -> Explanation:
    """Explain an exception of an arm.

    Args:
        raised: The exception.
        ordinary: Whether it was the ordinary arm's.
        localization: What was located when the arm ran once more, alone.

    Returns:
        The cause and its remedy.
    """
    if ordinary:
        return because(
            CauseKind.ORDINARY_RAISED,
            "the ordinary arm itself raised, so there is nothing to compare with",
        )
    by_text = _by_text(raised)
    if localization is None:
        return by_text
    if by_text.kind is CauseKind.SAVED_TENSOR_WRITTEN and localization.touches:
        touch = localization.touches[0]
        found = because_located(touch, localization.rank, f"{by_text.cause}: {touch.cause}")
        return replace(found, located=None)
    if by_text.kind in _REPLAY_KINDS and localization.replays:
        located = localization.replays[0]
        summary = raised.error.partition("\n")[0]
        return because_located(
            located, localization.rank, f"{located.cause} (it was refused: {summary})"
        )
    return by_text


_REPLAY_KINDS = frozenset(
    {
        CauseKind.DTYPE_DRIFT,
        CauseKind.ORDER_DRIFT,
        CauseKind.INPUT_CHANGED,
        CauseKind.STATE_MOVED,
        CauseKind.EXCEPTION,
    }
)
"""Kinds of exceptions that a replay which differs from its forward leads to."""


def _by_text(raised: Raised) -> Explanation:
    phase = raised.point.partition("[")[0]
    for pattern, kind, cause in _BY_TEXT:
        if re.search(pattern, raised.error):
            return because(kind, cause, phase=phase)
    return because(
        CauseKind.EXCEPTION,
        "the judged arm raised where the ordinary arm did not",
        phase=phase,
    )
