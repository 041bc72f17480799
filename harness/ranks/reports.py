"""What a leader can say of a rank that torchrun started: its report, or why there is none."""

from __future__ import annotations

import pickle

from harness.ranks.control import Control, ControlLostError
from harness.ranks.orders import result_key
from harness.ranks.pool import RankResult


def reported(control: Control, place: str, rank: int) -> RankResult | None:
    """Return what a rank reported of an order's place, or None where it has not yet."""
    key = result_key(place, rank)
    if not control.has(key):
        return None
    try:
        result: RankResult = pickle.loads(control.get(key))
    except ControlLostError:
        raise
    except Exception as error:
        text = f"what the task returned cannot be read here: {type(error).__name__}: {error}"
        return RankResult(rank=rank, status="raised", error=text)
    return result


def ended_by_itself(rank: int) -> RankResult:
    """Say that a rank's process ended."""
    detail = "see what torchrun says about its exit"
    return RankResult(rank=rank, status="died", error="ended by itself", detail=detail)


def ended_by_torchrun(rank: int) -> RankResult:
    """Say that torchrun's agent ended a rank with the others."""
    return RankResult(rank=rank, status="stalled", error="torchrun ended it with the others")


def held_in_c(rank: int) -> RankResult:
    """Say that a rank gave no sign of life although its process is there."""
    text = "no Python code could run there: C code holds the interpreter; its stacks are in the "
    return RankResult(
        rank=rank, status="stalled", error="still busy", detail=text + "rank's own output"
    )
