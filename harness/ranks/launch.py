"""Which ranks there are: those that torchrun started, or local ones that are started here.

Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harness.ranks.pool import RankPool, RankResult

if TYPE_CHECKING:
    from harness.ranks.torchrun import Leader

_ELASTIC_MARK = "TORCHELASTIC_RUN_ID"
_leader: Leader | None = None


class RanksLostError(RuntimeError):
    """A rank is gone or cannot be brought back; torchrun has to start all of them again."""


class Ranks(Protocol):
    """Ranks that run one task at a time, together."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def run(self, task: str, payload: Any, timeout: float) -> list[RankResult]:
        """Run a task on every rank, as :meth:`harness.ranks.RankPool.run` does."""

    def interrupt(self) -> None:
        """Make a task that runs in another thread end soon."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The place that torchrun gave to this process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    attempt: int
    """How often the ranks have been restarted."""
    host: str
    """Where the store is."""
    port: int
    agent_store: bool
    """Whether the store is the agent's, which outlives the ranks; rank 0 serves it otherwise."""

    @property
    def one_machine(self) -> bool:
        """Whether all ranks are on one machine."""
        return self.local_world_size == self.world_size


def take_launch() -> Launch | None:
    """Return the place that torchrun gave to this process, once.

    torchrun's mark is taken out of the environment: what this process starts is no rank.

    Returns:
        None where torchrun did not start this process, or the place was taken before.
    """
    if os.environ.pop(_ELASTIC_MARK, None) is None:
        return None
    number = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return Launch(
        rank=number["RANK"],
        world_size=number["WORLD_SIZE"],
        local_rank=number["LOCAL_RANK"],
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        host=os.environ["MASTER_ADDR"],
        port=int(os.environ["MASTER_PORT"]),
        agent_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def set_leader(leader: Leader | None) -> None:
    """Make ranks that torchrun started the ones that :func:`open_groups` returns."""
    global _leader
    _leader = leader


def current_leader() -> Leader | None:
    """Return the leader of the ranks that torchrun started; None where there are none."""
    return _leader


def resolve_size(ranks: int | None) -> int:
    """Return the number of ranks: the one asked for, or torchrun's, or two.

    Raises:
        ValueError: If torchrun started another number than is asked for.
    """
    if _leader is None:
        return 2 if ranks is None else ranks
    world_size = _leader.launch.world_size
    if ranks not in (None, world_size):
        raise ValueError(
            f"--ranks {ranks}, but torchrun started {world_size} ranks; leave --ranks out, or use "
            "--group-size to run cases on fewer ranks side by side"
        )
    return world_size


def local_size(size: int) -> int:
    """Return how many of a group's ranks are on one machine, at most.

    Args:
        size: Ranks of the group.
    """
    return size if _leader is None else min(size, _leader.launch.local_world_size)


def check_group_size(size: int, group_size: int) -> None:
    """Refuse groups that do not take all ranks.

    Raises:
        ValueError: If the ranks cannot be split into groups of that size.
    """
    if group_size < 1 or size % group_size:
        fitting = ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
        raise ValueError(
            f"--group-size {group_size}: {size} ranks cannot be split into groups of that size; "
            f"sizes that can: {fitting}"
        )


@contextmanager
def open_groups(size: int, group_size: int, backend: str) -> Iterator[Sequence[Ranks]]:
    """Open ranks in groups of one size that run side by side.

    Args:
        size: Number of ranks in all; torchrun's where it started them.
        group_size: Number of ranks of a group.
        backend: One of :data:`harness.ranks.BACKENDS`.

    Yields:
        The groups. Each is used from one thread; the first from the main thread.

    Raises:
        ValueError: If the ranks cannot be split so.
    """
    check_group_size(size, group_size)
    if _leader is not None:
        with _leader.groups(group_size, backend) as groups:
            yield groups
        return
    with ExitStack() as stack:
        yield [
            stack.enter_context(RankPool(group_size, first=first, backend=backend))
            for first in range(0, size, group_size)
        ]
