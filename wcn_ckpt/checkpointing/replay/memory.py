"""What a boundary remembers from one forward to the next."""

from __future__ import annotations

import warnings

from torch import nn

from wcn_ckpt.checkpointing.replay.guard import Fingerprints
from wcn_ckpt.checkpointing.replay.options import ReplayOptions
from wcn_ckpt.checkpointing.replay.plan import ReplayPlan


class BoundaryMemory:
    """The plan of a boundary and what was learned with it.

    It lives in the boundary's `__dict__`. A copied or unpickled boundary starts with an empty one:
    everything in it is found again.
    """

    __slots__ = (
        "draws_numpy",
        "fingerprints",
        "forwards",
        "plan",
        "read_norms",
        "replays",
        "seen_training",
        "switches_modes",
        "training",
        "unregistered",
        "warned",
    )

    def __init__(self) -> None:
        self.plan: ReplayPlan | None = None
        self.forwards = 0
        self.replays = 0
        self.training: tuple[bool, ...] | None = None
        self.seen_training: set[tuple[bool, ...]] = set()
        self.fingerprints: Fingerprints = {}
        self.draws_numpy = False
        self.switches_modes = False
        self.unregistered: list[nn.Module] = []
        self.read_norms: set[nn.Module] = set()
        self.warned: set[str] = set()

    def __reduce__(self) -> tuple[type[BoundaryMemory], tuple[()]]:
        """Copy and pickle as an empty one."""
        return BoundaryMemory, ()

    def new_plan(self, boundary: nn.Module, options: ReplayOptions) -> ReplayPlan:
        """Make the plan of `boundary` anew; watch it from the start where its tree has changed."""
        if self.plan is not None and not self.plan.same_entries():
            self.forwards = 0
        plan = self.plan = ReplayPlan(boundary, options, self.unregistered, self.read_norms)
        plan.quiet = plan.quiet and not self.switches_modes
        boundary.__dict__["_reads_and_writes_state"] = bool(plan.kept)
        return plan

    def found_switching(self) -> None:
        """Look at the modes after each replay from now on."""
        self.switches_modes = True
        if self.plan is not None:
            self.plan.quiet = False

    def learning_is_due(self, training: tuple[bool, ...]) -> bool:
        """Whether this forward is one in which values are to be compared.

        That is the 1st, 2nd, 4th, 8th, ..., and each that is the first with its training flags.
        """
        self.training = training
        if training not in self.seen_training:
            self.seen_training.add(training)
            return True
        return is_power_of_two(self.forwards)

    def audit_is_due(self) -> bool:
        """Count a replay, and say whether it is one to look at closely: 1st, 2nd, 4th, ..."""
        self.replays += 1
        return is_power_of_two(self.replays)

    def warn_once(self, message: str, category: type[Warning]) -> None:
        """Warn, unless this boundary did so in the same words."""
        if message not in self.warned:
            self.warned.add(message)
            warnings.warn(message, category, stacklevel=2)


def memory_of(boundary: nn.Module) -> BoundaryMemory:
    """Return what `boundary` remembers."""
    memory: BoundaryMemory | None = boundary.__dict__.get("_replay_memory")
    if memory is None:
        memory = boundary.__dict__["_replay_memory"] = BoundaryMemory()
    return memory


def is_power_of_two(count: int) -> bool:
    """Whether something costly is due at the count-th time, so that it becomes ever rarer."""
    return count & (count - 1) == 0
