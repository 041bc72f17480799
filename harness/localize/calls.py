"""What a recording consists of: calls, the tensors saved in them, regions and their replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from harness.localize.generators import States
from harness.localize.state import Place, State
from harness.localize.values import Leaf, Leaves

Kind = Literal["module", "body", "region"]


class Autocast(NamedTuple):
    """The state of autocast at one instant."""

    dtypes: tuple[tuple[str, str], ...]
    """Device type and dtype of each kind of autocast that is on."""
    caches: bool
    """Whether casts of weights are kept."""
    nesting: int
    """How many contexts of it are open; casts of weights are kept until there is none."""

    def __str__(self) -> str:
        """For example ``bfloat16 on cpu``, or ``off``."""
        return ", ".join(f"{dtype} on {device}" for device, dtype in self.dtypes) or "off"


@dataclass(frozen=True)
class Moment:
    """What surrounded a computation at one instant."""

    state: State
    """State of the module that computes and of everything below it."""
    generators: States
    """States of the random generators."""
    autocast: Autocast
    """The state of autocast."""
    records_gradients: bool
    """Whether gradients were recorded."""
    surroundings: State = field(default_factory=dict)
    """What else the code of the subject can read: globals, contexts, modes and hooks."""


@dataclass(frozen=True)
class Saved:
    """A tensor that was saved for backward."""

    leaf: Leaf
    place: Place | None
    """The parameter or buffer that it is, or None."""


@dataclass(eq=False)
class Call:
    """One computation of a module, of a boundary's body, or of a checkpointed region."""

    kind: Kind
    module: str
    """Path of the module that computes; of a region, the module that it is in."""
    point: str
    """Where in the program."""
    order: int
    """When it began, counted over the whole recording."""
    inputs: Leaves
    entry: Moment
    exit: Moment | None = None
    """None while it lasts; for one that was stopped, the moment at which that was noticed."""
    outputs: Leaves | None = None
    """None where it did not come to its end, and for a region."""
    inputs_after: Leaves | None = None
    """The inputs as it left them."""
    events: list[Call | Saved] = field(default_factory=list)
    """What was called and saved in it, in order."""

    stopped: bool = False
    """Whether it was stopped early, or raised."""
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})
    """What it was called with, while it lasts."""

    def walk(self) -> Iterator[Call]:
        """Yield this call and all calls in it, outer ones first."""
        yield self
        for event in self.events:
            if isinstance(event, Call):
                yield from event.walk()


@dataclass(eq=False)
class Replay:
    """One replay of a region or boundary."""

    forward: Call
    """The logical forward that is replayed."""
    number: int
    """Which replay of this forward it is, from 1."""
    point: str
    """Where in the program."""
    call: Call | None = None
    """What ran; None where nothing did."""
    before: Moment | None = None
    """Everything the subject held before the replay set anything up; None where not seen."""
    after: Moment | None = None
    """The same when the replay had put everything back."""


@dataclass
class Recording:
    """Everything that was recorded of one run of an arm."""

    forwards: list[Call] = field(default_factory=list)
    """Calls of the whole subject in logical forwards."""
    replays: list[Replay] = field(default_factory=list)
    """Replays, in the order in which they ran."""
