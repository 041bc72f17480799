"""Findings: what was not as expected, where, why and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

Scalar = float | int | str | bool | None
"""How values stand in a finding."""

BITWISE = "bitwise"
"""Tolerance source of comparisons that allow no difference at all."""

NEVER_REPLAYED = "replays"
"""Path of the finding that says that nothing was replayed."""


class CauseKind(str, Enum):
    """What kind of cause a finding has; the text in `Finding.cause` says it in full."""

    UNKNOWN = "unknown"
    """It cannot be told from what was seen."""
    REPEATED_UPDATE = "repeated_update"
    """Norm statistics or a counter were updated again by a replay."""
    MISSING_UPDATE = "missing_update"
    """A forward did not update what it should have, or a restore undid it."""
    STATE_WRITTEN = "state_written"
    """A buffer or a Python attribute was written where it should not be, as a rule by a replay."""
    STATE_REBOUND = "state_rebound"
    """A replay put another tensor in the place of a buffer or parameter."""
    STATE_MOVED = "state_moved"
    """A replay read state that had changed since its forward."""
    RANDOM_DRAWN = "random_drawn"
    """A replay drew other random numbers than its forward."""
    RANDOM_STATE = "random_state"
    """A random generator was left in another state."""
    INPUT_CHANGED = "input_changed"
    """An input was changed in place between the forward and its replay."""
    DTYPE_DRIFT = "dtype_drift"
    """The replay computed in another dtype: autocast differed."""
    ORDER_DRIFT = "order_drift"
    """The replay took another order, shape or path than its forward."""
    NONDETERMINISTIC = "nondeterministic"
    """A kernel gives different bits from the same inputs."""
    NOT_REPEATABLE = "not_repeatable"
    """Ordinary training does not repeat itself, so that nothing can be compared with it."""
    MISSING_COLLECTIVE = "missing_collective"
    """A rank did not take part in a collective that the others entered."""
    BUFFER_SYNC = "buffer_sync"
    """The copy of buffers between ranks met a replay."""
    REDUCTION = "reduction"
    """Gradients were reduced when they should not be, not reduced, or scaled."""
    GRADIENT_MISSING = "gradient_missing"
    """A gradient that the ordinary arm has is missing, or an output is detached."""
    GRADIENT_UNEXPECTED = "gradient_unexpected"
    """A gradient appeared where the ordinary arm has none."""
    SAVED_TENSOR_WRITTEN = "saved_tensor_written"
    """A tensor that a graph had saved was written in place before its backward."""
    GRAPH_FREED = "graph_freed"
    """A graph was freed before its last backward pass."""
    STATE_KEYS = "state_keys"
    """The keys of the `state_dict` changed."""
    NEVER_REPLAYED = "never_replayed"
    """No boundary was recomputed."""
    UNWANTED_REPLAY = "unwanted_replay"
    """A boundary was recomputed that should not be, or its forward ran too often."""
    REENTRANT = "reentrant"
    """The reentrant variant of torch's checkpoint was used."""
    EXCEPTION = "exception"
    """The judged arm raised where the ordinary one did not."""
    ORDINARY_RAISED = "ordinary_raised"
    """The ordinary arm raised."""
    PROCESS = "process"
    """A rank's process hung, died or was killed."""


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
    kind: CauseKind = CauseKind.UNKNOWN
    """The cause as one of a few kinds that programs can tell apart."""
    module: str | None = None
    """First submodule, in execution order, whose replay differs from its forward; None where that
    was not looked for. Empty for the subject itself."""
    phase: str | None = None
    """The pass in which it came about: ``forward``, ``replay 2``, ``backward``, ``optimizer step``,
    ``buffer broadcast``; None where that cannot be told."""
    source_rank: int | None = None
    """The rank on which it came about; None where that cannot be told."""

    def __post_init__(self) -> None:
        """Accept the text of a kind, as a results file has it."""
        object.__setattr__(self, "kind", CauseKind(self.kind))

    @property
    def origin(self) -> str:
        """Where it came about, such as ``submodule 'conv1.1', in replay 2, on rank 1``.

        Empty where nothing of that can be told.
        """
        parts = []
        if self.module is not None:
            parts.append(f"submodule {self.module!r}" if self.module else "the subject itself")
        if self.phase is not None:
            parts.append(f"in {self.phase}")
        if self.source_rank is not None:
            parts.append(f"on rank {self.source_rank}")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as it stands in a row of the results file."""
        return {**asdict(self), "kind": self.kind.value}
