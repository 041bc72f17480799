"""Which collective a rank is in, by its stack, and which rank did not enter it.

A rank that skips a replay with a collective in it leaves the others waiting there for ever, or
meets them in another collective, which then fails. Both show in the stacks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>[^\n]+)')
_TORCH = re.compile(r"/torch/")
_COLLECTIVES = re.compile(r"/torch/(distributed/(distributed_c10d|_functional_coll)|nn/parallel/)")
_WRAPPERS = frozenset({"wrapper", "wait", "__call__", "_call_impl", "_wrapped_call_impl"})
_BACKWARD = "_engine_run_backward"
_FORWARD_AGAIN = frozenset({"recompute_fn", "_call_impl", "unpack_hook"})


class Place(NamedTuple):
    """Where a rank is in its program."""

    collective: str | None
    """Name of the function of torch.distributed that it is in; None where it is in none."""
    code: str
    """The innermost line that is not torch's, such as ``block.py, line 31, in _forward``."""
    in_replay: bool
    """Whether a forward runs again there, inside a backward pass."""

    def __str__(self) -> str:
        """For example ``all_reduce (block.py, line 31, in _forward), in a replay``."""
        name = self.collective or "no collective"
        return f"{name} ({self.code})" + (", in a replay" if self.in_replay else "")


def place_of(text: str) -> Place | None:
    """Read where a rank is from a traceback, or from the stacks that faulthandler prints.

    Args:
        text: Either of them, of the main thread last.

    Returns:
        The place; None where the text has no frames.
    """
    if "most recent call first" in text:
        text = text.rpartition("most recent call first")[2]
        frames = list(_FRAME.finditer(text))
    else:
        frames = list(_FRAME.finditer(text))[::-1]
    if not frames:
        return None
    functions = [frame["function"].strip() for frame in frames]
    inner = functions[: functions.index(_BACKWARD)] if _BACKWARD in functions else []
    collective = next(
        (
            frame["function"].strip()
            for frame in frames
            if _COLLECTIVES.search(frame["file"]) and frame["function"].strip() not in _WRAPPERS
        ),
        None,
    )
    own = next((frame for frame in frames if not _TORCH.search(frame["file"])), frames[0])
    file = own["file"].rpartition("/")[2]
    code = f"{file}, line {own['line']}, in {own['function'].strip()}"
    return Place(collective, code, not _FORWARD_AGAIN.isdisjoint(inner))


def missing_collective(places: Mapping[int, Place | None]) -> tuple[int, int, str] | None:
    """Find a rank that did not enter a collective of a replay that another one is in.

    Args:
        places: Rank -> where it is; None for a rank that is through with the case.

    Returns:
        The rank that is in the collective, the rank that did not enter it, and a cause in words;
        None where nothing of the kind is seen.
    """
    inside = {
        rank: place
        for rank, place in places.items()
        if place is not None and place.in_replay and place.collective is not None
    }
    for rank, place in inside.items():
        for other, there in places.items():
            if other == rank or there == place:
                continue
            doing = "was through with the case" if there is None else f"was in {there}"
            return (
                rank,
                other,
                f"rank {other} did not enter the collective {place.collective} that rank {rank} "
                f"reached in a replay ({place.code}): it {doing}",
            )
    return None
