"""Whether this thread is inside a replay."""

from __future__ import annotations

import threading


class _ReplayDepth(threading.local):
    depth: int = 0


replay_depth = _ReplayDepth()


def is_replaying() -> bool:
    """Whether the calling thread is recomputing a boundary for a backward pass.

    A block with a side effect of its own (a counter, a cache, a list of auxiliary losses) skips it
    in one line, so that it happens once per logical forward::

        if not is_replaying():
            self.tokens_seen += tokens.numel()
    """
    return replay_depth.depth > 0
