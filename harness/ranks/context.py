"""What a task knows about the rank it runs in, and the rank's process group."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 - see RankContext.join

from harness.devices import group_backend
from harness.ranks.messages import Loss

_GROUP_TIMEOUT = timedelta(minutes=30)
"""Far above any case's time limit: the pool ends a case, the group's own limit never does."""


class RankContext:
    """One rank's place among the ranks.

    Args:
        rank: This rank, from 0.
        size: Number of ranks.
        folder: A folder that all ranks share, for their rendezvous files.
        backend: Backend of the group: ``auto``, ``gloo`` or ``nccl``.
        local_size: Number of ranks on this machine; all of them by default.
    """

    def __init__(
        self, rank: int, size: int, folder: Path, backend: str, *, local_size: int | None = None
    ) -> None:
        """Keep the arguments; the group is joined by :meth:`join`."""
        self.rank = rank
        self.size = size
        self.group_lost = False
        """Whether this rank left the group while a task ran."""
        self.unfit = False
        """Set by a task after which this process is of no further use; all ranks are replaced."""
        self._folder = folder
        self._backend = group_backend(backend, size if local_size is None else local_size)

    def join(self, generation: int) -> None:
        """Form a new process group with the other ranks, leaving the current one if any.

        `torch.distributed.nn.functional`, which DDP imports when it is first built, has the default
        group among its default arguments: imported after the group is formed, it would keep the
        group and its threads alive past :meth:`leave`.

        Args:
            generation: The same number on every rank, never used before.
        """
        self.leave()
        dist.init_process_group(
            self._backend,
            rank=self.rank,
            world_size=self.size,
            timeout=_GROUP_TIMEOUT,
            **self._meeting_place(generation),
        )
        self.group_lost = False

    def _meeting_place(self, generation: int) -> Mapping[str, Any]:
        return {"init_method": f"file://{self._folder}/group-{generation}"}

    def leave(self) -> None:
        """Leave the process group; peers that wait for this rank in a collective are woken.

        Cycles are collected first: a DDP reducer that outlives its group can abort the process.
        """
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()

    def abandon_group(self) -> None:
        """Leave the group in the middle of a task that failed on this rank."""
        self.leave()
        self.group_lost = True

    @property
    def loss(self) -> Loss:
        """What the tasks so far leave behind."""
        group = Loss.GROUP if self.group_lost else Loss.NONE
        return group | Loss.RANKS if self.unfit else group
