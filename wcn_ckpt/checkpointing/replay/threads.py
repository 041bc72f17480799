"""Which replays run at this moment, in this thread and in others.

A replay redirects the state of modules for a while. Another thread that ran them meanwhile would
write into the stand-ins, or put the wrong tensors back.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from wcn_ckpt.checkpointing.errors import ConcurrentReplayError


class Redirects(Protocol):
    """Anything that knows which module dictionaries its replay redirects."""

    holders: list[dict[str, Any]]


class _ThisThread(threading.local):
    """What this thread is inside of, the outermost first.

    Attributes:
        replays: replays.
        forwards: logical forwards of boundaries with state.
        learning: forwards that watch what they write, each with the frames of the boundaries that
            ran inside it.
        recollections: runs of boundaries with something that replays must not repeat. A logical
            forward is a list that is being filled, a replay an iterator over one.
        lists: the three of them.
        is_autograds: whether autograd started this thread. On an accelerator backward runs in one
            while the thread that called it waits, perhaps inside a forward.
    """

    def __init__(self) -> None:
        self.replays: list[Redirects] = []
        self.forwards: list[Redirects] = []
        self.learning: list[list[Any]] = []
        self.recollections: list[Any] = []
        self.lists = self.replays, self.forwards, self.learning
        self.is_autograds = isinstance(threading.current_thread(), threading._DummyThread)
        in_use_by_thread[threading.get_ident()] = (self.replays, self.forwards)


in_use_by_thread: dict[int, tuple[list[Redirects], list[Redirects]]] = {}
"""Replays and logical forwards that each thread is inside of."""

this_thread = _ThisThread()


def is_replaying() -> bool:
    """Whether the calling thread is recomputing a boundary for a backward pass.

    A block with a side effect of its own (a counter, a cache, a list of auxiliary losses) skips it
    in one line, so that it happens once per logical forward::

        if not is_replaying():
            self.tokens_seen += tokens.numel()
    """
    return len(this_thread.replays) > 0


def check(plan: Redirects, replaying: bool) -> None:
    """Make sure that no other thread uses a module of `plan`.

    A replay meets with replays and forwards of others, a forward with their replays alone.

    Args:
        plan: what is about to run.
        replaying: whether it is a replay.

    Raises:
        ConcurrentReplayError: another thread does.
    """
    mine = set(map(id, plan.holders))
    for replays, forwards in list(in_use_by_thread.values()):
        if replays is this_thread.replays:
            continue
        others = list(replays)
        if replaying and not this_thread.is_autograds:
            others += forwards
        if any(id(holder) in mine for other in others for holder in other.holders):
            raise ConcurrentReplayError(
                "Another thread is running a boundary that holds the same module, and a replay "
                "redirects its buffers. Give each thread a module of its own (copy.deepcopy), or "
                "run their forward and backward passes one after the other."
            )
