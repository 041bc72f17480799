"""Norm layers that scratch does not do for, found in a forward: read ones, unregistered ones."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from wcn_ckpt.checkpointing.replay.kept import EntryState
from wcn_ckpt.checkpointing.replay.learning import held_in_attributes, watch_unregistered
from wcn_ckpt.checkpointing.replay.memory import BoundaryMemory
from wcn_ckpt.checkpointing.replay.reads import read_statistics
from wcn_ckpt.checkpointing.replay.redirect import NormScratch


class NormSearch:
    """Looks in one logical forward for norm layers that the plan of a boundary does not do for.

    Args:
        boundary: the module that is run.
        memory: takes what is found.
        norms: layers that replays give scratch.
        given: the arguments of the forward; modules among them are looked at in each forward.
        thorough: whether to look for everything else as well.
    """

    def __init__(
        self,
        boundary: nn.Module,
        memory: BoundaryMemory,
        norms: list[NormScratch],
        given: Iterable[Any],
        thorough: bool,
    ) -> None:
        self._memory = memory
        held = [value for value in given if isinstance(value, nn.Module)]
        if thorough:
            held += held_in_attributes(boundary)
        self._held = watch_unregistered(boundary, held, memory.unregistered) if held else []
        self._reads = read_statistics(boundary, norms) if thorough else None

    def around(self) -> AbstractContextManager[Any]:
        """What the forward is to run in."""
        return nullcontext() if self._reads is None else self._reads

    def found(self) -> tuple[bool, list[EntryState]]:
        """Remember what the forward has shown.

        Returns:
            Whether the plan is outdated, and the statistics that replays of this forward need.
        """
        ran = [entry.module for entry in self._held if entry.written()]
        read = [] if self._reads is None else self._reads.found()
        self._memory.unregistered += ran
        self._memory.read_norms |= {norm for norm, _ in read}
        return bool(ran or read), [entry for _, entry in read]
