"""``ckpt-lab predict``: how long a suite takes on other ranks and shards, by simulation."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.history import warm_up
from harness.ranks.launch import check_group_size
from harness.shards import balance
from harness.store import read_rows


@dataclass(frozen=True)
class Prediction:
    """How long a suite takes; seconds."""

    wall: float
    """From the first start to the last end: start-up and the longest shard."""
    shards: tuple[float, ...]
    """Each shard by itself, start-up included."""
    cases: float
    """All cases one after the other."""


def simulate(seconds: Sequence[float], *, shards: int, groups: int, startup: float) -> Prediction:
    """Play a run through: shards as ``--shard`` cuts them, groups of ranks as they become free.

    Args:
        seconds: How long each case takes on one group of ranks, in the order of the suite.
        shards: Number of machines.
        groups: Number of groups of ranks that run cases side by side on each machine.
        startup: Seconds until the ranks of a shard take the first case.

    Returns:
        What it comes to, if a group is not slowed down by the others.
    """
    places = balance(seconds, shards)
    walls = []
    for shard in range(shards):
        free = [startup] * groups
        for place, duration in zip(places, seconds, strict=True):
            if place == shard:
                heapq.heapreplace(free, free[0] + duration)
        walls.append(max(free))
    return Prediction(max(walls), tuple(walls), sum(seconds))


def prediction_text(folder: Path, *, ranks: int, shards: int, startup: float) -> str:
    """Predict a run of the cases that a results folder records.

    Args:
        folder: The results folder; its times are taken as they are.
        ranks: Ranks of each machine, split into groups of as many as the cases ran on.
        shards: Number of machines.
        startup: Seconds until the command of a shard starts its ranks. What the ranks themselves
            take is seen in the first recorded case.

    Returns:
        Lines for a person.

    Raises:
        ValueError: If nothing is recorded, or the ranks cannot be split so.
    """
    try:
        rows = read_rows(folder)
    except FileNotFoundError:
        raise ValueError(f"{folder} is no results folder") from None
    if not rows:
        raise ValueError(f"{folder} records no case")
    sizes = sorted({row.ranks for row in rows})
    if len(sizes) > 1:
        raise ValueError(f"the cases of {folder} ran on {sizes} ranks; give a run on one number")
    check_group_size(ranks, sizes[0])
    groups = ranks // sizes[0]
    extra, seconds = warm_up(rows)
    startup += extra
    found = simulate(seconds, shards=shards, groups=groups, startup=startup)
    return "\n".join(
        [
            f"recorded: {len(rows)} cases on {sizes[0]} ranks, {found.cases:.1f} s of cases",
            f"predicted: {ranks} ranks (groups of {sizes[0]}: {groups}) x {shards} shards: "
            f"{found.wall:.1f} s, of which {startup:.1f} s start-up",
            f"shortest shard: {min(found.shards):.1f} s; speed-up over one group on one machine: "
            f"{(found.cases + startup) / found.wall:.2f}",
            "assumed: each rank has a core of its own, as in the recorded run",
        ]
    )
