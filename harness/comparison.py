"""What two runs say about the same cases: what newly fails, what is fixed, what else changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.row import Row
from harness.store import StoreError, read_rows, read_run

TIME_FACTOR = 2.0
"""How many times longer or shorter a case must take to count as changed."""

_LEAST_SECONDS = 0.1
"""Shorter changes of a case's time are not told: a busy machine makes them."""

_NOISE_FACTOR = 2.0


@dataclass(frozen=True)
class Change:
    """One case in two runs."""

    before: Row | None
    """None where it is new."""
    after: Row | None
    """None where it is gone."""

    @property
    def row(self) -> Row:
        """The later of the two rows."""
        row = self.after or self.before
        if row is None:
            raise ValueError("a change needs a row before or after it")
        return row


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs, side by side."""

    settings: Mapping[str, tuple[Any, Any]]
    """What was asked or installed otherwise: name -> before and after."""
    newly_failing: Sequence[Change] = ()
    """Not as expected, and as expected before or not there."""
    fixed: Sequence[Change] = ()
    """As expected, and not before."""
    failing_otherwise: Sequence[Change] = ()
    """Not as expected in both, in another way."""
    still_failing: int = 0
    """How many fail in both in the same way."""
    only_before: Sequence[Change] = ()
    """Cases that the second run does not have."""
    only_after: Sequence[Change] = ()
    """Cases that the first run does not have."""
    noise: Sequence[Change] = ()
    """Cases whose noise came, went or changed by more than a factor of two."""
    slower: Sequence[Change] = ()
    """Cases as expected in both that take longer, the largest change first."""
    faster: Sequence[Change] = ()
    """Cases as expected in both that take less time, the largest change first."""
    common: int = 0
    """How many cases are in both."""
    seconds: tuple[float, float] = (0.0, 0.0)
    """Time of the cases that are as expected in both."""
    time_ratio: float | None = None
    """Median over these cases of the later time over the earlier one."""


def compare_folders(before: Path, after: Path, time_factor: float = TIME_FACTOR) -> Comparison:
    """Compare two results folders; each may hold one results file or one for each shard.

    Args:
        before: The first results folder.
        after: The second one.
        time_factor: How many times longer or shorter a case must take to count as changed.

    Raises:
        StoreError: If one of them is no results folder, or a line in it is damaged.
    """
    rows = [_rows(folder) for folder in (before, after)]
    settings = _changed(_settings(before), _settings(after))
    return compare(rows[0], rows[1], settings=settings, time_factor=time_factor)


def compare(
    before: Sequence[Row],
    after: Sequence[Row],
    *,
    settings: Mapping[str, tuple[Any, Any]] | None = None,
    time_factor: float = TIME_FACTOR,
) -> Comparison:
    """Compare the rows of two runs, case by case and seed by seed.

    Args:
        before: Rows of the first run; of a case that is there twice, the last one counts.
        after: Rows of the second one.
        settings: What was asked or installed otherwise.
        time_factor: How many times longer or shorter a case must take to count as changed.
    """
    old = {(row.case, row.seed): row for row in before}
    new = {(row.case, row.seed): row for row in after}
    changes = [Change(old.get(key), new.get(key)) for key in {**old, **new}]
    both = [(c, c.before, c.after) for c in changes if c.before and c.after]
    failing = [(c, a, b) for c, a, b in both if not a.passed and not b.passed]
    passing = [(c, a, b) for c, a, b in both if a.passed and b.passed]
    otherwise = [c for c, a, b in failing if _failure(a) != _failure(b)]
    timed = sorted(
        ((_ratio(a.seconds, b.seconds), c) for c, a, b in passing if _retimed(a, b)),
        key=lambda item: item[0],
    )
    ratios = [_ratio(a.seconds, b.seconds) for _, a, b in passing]
    return Comparison(
        settings=dict(settings or {}),
        newly_failing=[
            c
            for c in changes
            if c.after and not c.after.passed and (c.before is None or c.before.passed)
        ],
        fixed=[c for c, a, b in both if b.passed and not a.passed],
        failing_otherwise=otherwise,
        still_failing=len(failing) - len(otherwise),
        only_before=[c for c in changes if c.after is None],
        only_after=[c for c in changes if c.before is None],
        noise=[c for c, a, b in both if _noise_changed(a.noise or 0.0, b.noise or 0.0)],
        slower=[c for ratio, c in reversed(timed) if ratio >= time_factor],
        faster=[c for ratio, c in timed if ratio <= 1 / time_factor],
        common=len(both),
        seconds=(sum(a.seconds for _, a, _ in passing), sum(b.seconds for _, _, b in passing)),
        time_ratio=median(ratios) if ratios else None,
    )


def _rows(folder: Path) -> list[Row]:
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; name a results folder of the lab")
    try:
        return read_rows(folder)
    except FileNotFoundError:
        raise StoreError(f"{folder} holds no results") from None


def _settings(folder: Path) -> dict[str, Any]:
    try:
        run = read_run(folder)
    except FileNotFoundError:
        return {}
    groups = [run.get(name) for name in ("asked", "versions")]
    flat = {k: v for group in groups if isinstance(group, Mapping) for k, v in group.items()}
    return {**flat, "code": run.get("code"), "commit": run.get("commit")}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    }


def _failure(row: Row) -> tuple[Any, ...]:
    first = row.findings[0] if row.findings else None
    return row.outcome, first and (first.kind, first.path.partition("[")[0])


def _noise_changed(before: float, after: float) -> bool:
    low, high = sorted((before, after))
    return high > _NOISE_FACTOR * low


def _retimed(before: Row, after: Row) -> bool:
    return abs(after.seconds - before.seconds) >= _LEAST_SECONDS


def _ratio(before: float, after: float) -> float:
    return (after + 1e-6) / (before + 1e-6)
