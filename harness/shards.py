"""Cuts a run into shards that take about the same time on machines of their own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.history import guessed_seconds, recorded_seconds
from matrix.case import Case
from matrix.suites import Selection

_FORM = re.compile(r"([0-9]+)/([0-9]+)")

SeededCase = tuple[Case, int]
"""A case and the seed of its run."""


@dataclass(frozen=True, order=True)
class Shard:
    """One of several parts of a run."""

    number: int
    """From 1."""
    count: int
    """How many there are."""

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that a person typed, as in ``3/8``.

        Raises:
            ValueError: If it is not of that form, or there is no such shard.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"--shard {text!r} is not of the form i/n, as in 3/8")
        number, count = int(match[1]), int(match[2])
        if not 1 <= number <= count:
            raise ValueError(f"--shard {text}: shards are numbered from 1 to {count}")
        return cls(number, count)

    @property
    def text(self) -> str:
        """As it is typed."""
        return f"{self.number}/{self.count}"

    @property
    def tag(self) -> str:
        """As in the name of a results file."""
        return f"{self.number}-of-{self.count}"


@dataclass(frozen=True)
class Cut:
    """A run cut into shards: each case is in exactly one."""

    cases: tuple[SeededCase, ...]
    """All cases, in the order of the whole run."""
    shards: tuple[int, ...]
    """For each case, the number of its shard."""

    def of(self, shard: Shard) -> list[SeededCase]:
        """Return the cases of a shard, in the order of the whole run."""
        pairs = zip(self.cases, self.shards, strict=True)
        return [case for case, number in pairs if number == shard.number]

    @property
    def digest(self) -> str:
        """Stands for the cut: shards of different cuts may overlap or leave cases out."""
        lines = [
            f"{number} {seed} {case.id}"
            for (case, seed), number in zip(self.cases, self.shards, strict=True)
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def cut(selections: Mapping[int, Selection], count: int, times: Path | None) -> Cut:
    """Cut a run.

    Args:
        selections: The cases of the run, by seed.
        count: Number of shards.
        times: Results folder with recorded times; without it, or where it records nothing, times
            are guessed from kind of subject and length of training.

    Returns:
        The same cut for the same arguments and recorded times.

    Raises:
        ValueError: If ``times`` is no results folder.
    """
    cases = tuple(
        dict.fromkeys(
            (case, seed) for seed, selection in selections.items() for case in selection.cases
        )
    )
    plain = [case for case, _ in cases]
    seconds = (recorded_seconds(plain, times) if times is not None else None) or guessed_seconds(
        plain
    )
    return Cut(cases, tuple(number + 1 for number in balance(seconds, count)))


def balance(seconds: Sequence[float], count: int) -> list[int]:
    """Spread jobs over machines, the longest first, each to the machine that is free first.

    No spread is more than a third faster than this one: R. L. Graham, "Bounds on Multiprocessing
    Timing Anomalies", SIAM Journal on Applied Mathematics 17 (1969).

    Args:
        seconds: How long each job takes.
        count: Number of machines.

    Returns:
        For each job the number of its machine, from 0.
    """
    loads = [0.0] * count
    places = [0] * len(seconds)
    for job in sorted(range(len(seconds)), key=lambda job: (-seconds[job], job)):
        machine = min(range(count), key=lambda machine: (loads[machine], machine))
        loads[machine] += seconds[job]
        places[job] = machine
    return places
