"""Which threads are replaying, and whether two of them meet in one module.

A replay redirects the state of modules for a while. Another thread that ran them meanwhile would
write into the stand-ins, or put the wrong tensors back.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any, Protocol

from wcn_ckpt.checkpointing.errors import ConcurrentReplayError


class Redirects(Protocol):
    """Anything that knows which module dictionaries its replay redirects."""

    holders: list[dict[str, Any]]


replaying: dict[int, list[Redirects]] = {}
"""For each thread that is inside replays, what they redirect, the outermost first."""


def enter(plan: Redirects) -> None:
    """Announce a replay of this thread; `leave` ends it, also after an error from here.

    Raises:
        ConcurrentReplayError: another thread is replaying something that holds the same module.
    """
    replaying.setdefault(get_ident(), []).append(plan)
    if len(replaying) > 1:
        check(plan)


def leave() -> None:
    """End the replay that this thread announced last."""
    me = get_ident()
    plans = replaying[me]
    plans.pop()
    if not plans:
        del replaying[me]


def check(plan: Redirects) -> None:
    """Make sure that no other thread is replaying with a module of `plan`.

    Raises:
        ConcurrentReplayError: one is.
    """
    me = get_ident()
    mine = set(map(id, plan.holders))
    for thread, plans in list(replaying.items()):
        if thread != me and any(id(h) in mine for other in list(plans) for h in other.holders):
            raise ConcurrentReplayError(
                "Another thread is replaying a boundary that holds the same module; its buffers "
                "are redirected until that replay ends. Give each thread a module of its own "
                "(copy.deepcopy), or run their forward and backward passes one after the other."
            )
