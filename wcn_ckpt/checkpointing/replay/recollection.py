"""Values that a logical forward computes together with other ranks, and its replays take over.

A replay that called the same collective again would have to do so on every rank, in one order.
Instead each logical forward keeps what it computed, in order, and each of its replays reads that
from the start: a retained graph replays it several times, an early stop leaves the rest unread, and
joint forwards keep lists of their own. A replay that asks for something else than its forward did
is refused.

Boundaries nest, and so do runs: the innermost replay that a thread is inside of answers, and every
forward that runs inside that replay keeps the answer for its own replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from torch import nn

from wcn_ckpt.checkpointing.errors import ReplayError
from wcn_ckpt.checkpointing.replay.threads import this_thread

_Result = TypeVar("_Result")
_Values = list[tuple[nn.Module, Any]]


class OncePerForward(nn.Module):
    """A module with a computation that replays must not repeat.

    Derive from it, and call :meth:`_once_per_forward` in `forward`.
    """

    def _once_per_forward(self, compute: Callable[[], _Result]) -> _Result:
        """Return `compute()`, or in a replay what it returned in the logical forward.

        Args:
            compute: the computation; its result holds no graph, and nothing changes it later.

        Raises:
            ReplayError: a replay runs such modules in another order than its forward.
        """
        runs = this_thread.recollections
        inside = 0
        result: Any = None
        for position in reversed(range(len(runs))):
            if not isinstance(runs[position], list):
                result = _recall(runs[position], self)
                inside = position + 1
                break
        else:
            result = compute()
        for values in runs[inside:]:
            values.append((self, result))
        return cast(_Result, result)


class Recollection:
    """A computation whose first run keeps what modules compute once, for all later runs.

    Args:
        fn: the computation of a boundary.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._values: _Values | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `fn`: the first time as a logical forward, then as its replays."""
        runs = this_thread.recollections
        if self._values is None:
            self._values = []
            runs.append(self._values)
        else:
            runs.append(iter(self._values))
        try:
            return self._fn(*args, **kwargs)
        finally:
            runs.pop()


def _recall(values: Iterator[tuple[nn.Module, Any]], module: nn.Module) -> Any:
    owner, result = next(values, (None, None))
    if owner is not module:
        there = "none" if owner is None else f"another {type(owner).__name__}"
        raise ReplayError(
            f"A replay runs {type(module).__name__} where its forward ran {there}: the statistics "
            "that the ranks computed together would be mixed up. Let the block run the same layers "
            "in the same order each time, or keep the choice in an argument."
        )
    return result
