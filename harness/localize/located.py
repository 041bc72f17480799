"""What a localization says: small values that ranks can send each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.findings import CauseKind, Scalar


@dataclass(frozen=True, kw_only=True)
class Located:
    """One thing that went wrong, where and why."""

    rank: int
    """The rank on which it went wrong."""
    point: str
    """Where in the program."""
    phase: str
    """The pass, as in :attr:`harness.findings.Finding.phase`."""
    module: str
    """Path of the submodule."""
    kind: CauseKind
    """The kind of cause."""
    cause: str
    """The cause in words."""
    tensor: str
    """What differs: an output, an input, a tensor saved for backward, a piece of state."""
    expected: Scalar
    """Its value in the forward or before, at the first index that differs."""
    got: Scalar
    """Its value in the replay or afterwards, at that index."""
    max_abs: float | None
    """Largest absolute difference; None where there is no number."""
    forward: str
    """The logical forward it belongs to, as a point in the program."""
    order: int
    """When the submodule ran in its logical forward, counted over the whole run."""
    last: int = 0
    """When the last submodule of the replayed region ran."""
    state: str | None = None
    """Path of the state that was written, or name of the generator that was moved; None where a
    computation differs."""

    @property
    def path(self) -> str:
        """The submodule and what differs there, as in the path of a finding."""
        return f"{self.module}.{self.tensor}" if self.module else self.tensor


@dataclass(frozen=True, kw_only=True)
class Localization:
    """Everything that was located in one run of the judged arm, on all ranks."""

    rank: int
    """The rank it is for."""
    forwards: tuple[Located, ...] = ()
    """The first submodule of each forward that computes another value than in the ordinary arm."""
    forward_writes: tuple[Located, ...] = ()
    """State that forwards left other than the ordinary arm's forwards do."""
    forward_draws: tuple[Located, ...] = ()
    """Generators that forwards left in another state than the ordinary arm's forwards do."""
    replays: tuple[Located, ...] = ()
    """The first submodule of each replay that computes another value than in its forward, in the
    order of the forwards."""
    writes: tuple[Located, ...] = ()
    """State that replays left changed, in the order in which they ran."""
    touches: tuple[Located, ...] = ()
    """Buffers and parameters that replays wrote in place, whatever the value."""
    draws: tuple[Located, ...] = ()
    """Generators that replays left in another state."""
    uses: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Point and path of a module -> when it first ran there."""
    reentrant: bool = False
    """Whether forwards ran without recording gradients, and their replays with."""
    others: tuple[Localization, ...] = ()
    """What the other ranks located."""

    def with_others(self, others: tuple[Localization, ...]) -> Localization:
        """Return this with what the other ranks located."""
        return replace(self, others=others)
