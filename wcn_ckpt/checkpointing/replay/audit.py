"""Reports about state that nothing preserves: never silent."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from torch import nn

from wcn_ckpt.checkpointing.errors import UnpreservedStateError, UnpreservedStateWarning
from wcn_ckpt.checkpointing.replay.guard import path_of
from wcn_ckpt.checkpointing.replay.kept import OriginalEntries
from wcn_ckpt.checkpointing.replay.learning import watch
from wcn_ckpt.checkpointing.replay.memory import BoundaryMemory, memory_of
from wcn_ckpt.checkpointing.replay.naming import name_of
from wcn_ckpt.checkpointing.replay.plan import ReplayPlan
from wcn_ckpt.checkpointing.replay.redirect import Holder
from wcn_ckpt.checkpointing.replay.values import version

_REMEDY = "Name it in the boundary's `state` option"


class Audit:
    """Watches one replay for writes to state that it does not preserve.

    Args:
        boundary: the module that is replayed.
        plan: what it holds, and its switches; in strict mode a finding is an error.
        originals: what was replaced for the replay: a write to one of these tensors came through
            an alias that is no buffer.
        compare_values: compare values too, where nothing is learned.

    Raises:
        UnpreservedStateError: on exit, in strict mode.
    """

    def __init__(
        self,
        boundary: nn.Module,
        plan: ReplayPlan,
        originals: Sequence[OriginalEntries],
        compare_values: bool,
    ) -> None:
        self._boundary = boundary
        self._memory = memory_of(boundary)
        self._strict = plan.options.strict_state
        self._kept = {(id(holder), name) for holder, kinds in plan.kept for name in kinds}
        self._watched = watch(
            plan.watchable,
            plan.managed_by_fsdp,
            compare_values=compare_values and not plan.options.learn,
        )
        self._originals = [
            (holder, name, tensor, version(tensor))
            for holder, entries in originals
            for name, tensor in entries.items()
            if tensor is not None
        ]

    def __enter__(self) -> None:
        """Begin; everything was recorded at construction."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Report the first write found, if any."""
        for holder, name in self._written():
            self._report(path_of(self._boundary, holder, name))
            return

    def _written(self) -> list[tuple[Holder, str]]:
        written = [
            (entry.holder, name)
            for entry in self._watched
            for name in entry.written()
            if (id(entry.holder), name) not in self._kept
        ]
        return written + [
            (holder, name)
            for holder, name, tensor, before in self._originals
            if version(tensor) != before
        ]

    def _report(self, path: str) -> None:
        message = (
            f"A replay of {name_of(self._boundary)} wrote {path!r}, which nothing preserves: "
            "it is updated in the forward and again in each backward. "
            f"{_REMEDY}, leave learning on, write it through the module and not through an alias, "
            "or write it only where is_replaying() is false."
        )
        if self._strict:
            raise UnpreservedStateError(message)
        self._memory.warn_once(message, UnpreservedStateWarning)


def report_late(boundary: nn.Module, memory: BoundaryMemory, path: str) -> None:
    """Warn about state that was first written in a later forward, or whose value was not kept."""
    memory.warn_once(
        f"{name_of(boundary)} first wrote {path!r} in training forward {memory.forwards}; it "
        f"is kept through replays from now on. {_REMEDY} to keep it from the first forward.",
        UnpreservedStateWarning,
    )


def report_lost(boundary: nn.Module, path: str) -> None:
    """Refuse to replay a forward that wrote state whose entry value was not kept.

    Raises:
        UnpreservedStateError: always.
    """
    raise UnpreservedStateError(
        f"{name_of(boundary)} wrote {path!r} in a forward that did not keep its value on "
        f"entry. {_REMEDY}."
    )
