"""What earlier runs left behind: the latest results folder, and how long its cases took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from harness.registered import parse_any_case
from harness.row import Row
from harness.store import StoreError, read_rows, read_run
from matrix.axes import AXES
from matrix.case import Case
from matrix.programs import build_program
from matrix.values import Value

RESULTS_ROOT = Path("ckpt-lab-results")
"""Where results folders are made when none is given, and where the latest one is remembered."""

_LATEST = "latest"
_JUDGING = ("arm", "ranks", "device", "backend")
_STEP_SECONDS = {"block": 0.007, "model": 0.0174}


def remember(folder: Path) -> None:
    """Make a results folder the latest one.

    Raises:
        OSError: If it cannot be written down.
    """
    RESULTS_ROOT.mkdir(exist_ok=True)
    (RESULTS_ROOT / _LATEST).write_text(f"{folder.resolve()}\n", encoding="utf-8")


def latest_folder() -> Path | None:
    """Return the latest results folder, or None where there is none any more."""
    try:
        folder = Path((RESULTS_ROOT / _LATEST).read_text(encoding="utf-8").strip())
    except OSError:
        return None
    return folder if folder.is_dir() else None


def failed_cases(folder: Path) -> dict[int, list[Case]]:
    """Return the cases of a results folder that are not as expected, by seed.

    Raises:
        ValueError: If the folder has no results, or one of its cases exists no more.
    """
    failed: dict[int, list[Case]] = defaultdict(list)
    for row in _rows(folder):
        if not row.passed:
            failed[row.seed].append(parse_any_case(row.case))
    return dict(failed)


def asked_of(folder: Path) -> dict[str, Any]:
    """Return the options of a run that decide how its cases are judged, but for their seeds.

    Returns:
        ``arm``, ``device``, ``backend``, and as ``ranks`` how many ran a case together.

    Raises:
        ValueError: If what the run was asked is not known.
    """
    try:
        asked = read_run(folder)["asked"]
    except (FileNotFoundError, KeyError):
        raise StoreError(f"{folder} does not tell what was run in it") from None
    return {name: asked[name] for name in _JUDGING if name in asked}


def estimated_seconds(cases: Sequence[Case], folder: Path) -> float | None:
    """Estimate how long cases take together on ranks that have started.

    Args:
        cases: The cases.
        folder: The results folder with recorded times.

    Returns:
        Seconds; None where nothing is recorded.
    """
    times = recorded_seconds(cases, folder)
    return None if times is None else sum(times)


def recorded_seconds(cases: Sequence[Case], folder: Path) -> list[float] | None:
    """Return how long each case took, or an estimate where it was not recorded.

    Time goes by the forwards, backwards and optimizer steps of a case; what one of them takes on
    a subject is the mean over that subject's recorded cases, or over all of them.

    Args:
        cases: The cases.
        folder: The results folder with recorded times.

    Returns:
        Seconds; None where nothing is recorded.
    """
    seconds: dict[str, float] = defaultdict(float)
    steps: dict[str, int] = defaultdict(int)
    recorded: dict[str, list[float]] = defaultdict(list)
    rows = _rows(folder)
    for row, own in zip(rows, warm_up(rows)[1], strict=True):
        recorded[row.case].append(own)
        seconds[row.subject] += own
        steps[row.subject] += _steps({**{a.name: a.default for a in AXES}, **row.axes})
    if not steps:
        return None
    anywhere = sum(seconds.values()) / sum(steps.values())
    pace = {subject: seconds[subject] / steps[subject] for subject in steps}
    return [
        mean(recorded[case.id])
        if case.id in recorded
        else pace.get(case.subject.name, anywhere) * _steps(case.assignment)
        for case in cases
    ]


def warm_up(rows: Sequence[Row]) -> tuple[float, list[float]]:
    """Take the start of the ranks out of the times of a run.

    The first case waits until the ranks have started and have imported what they need.

    Args:
        rows: The rows of a run, in the order in which they were written.

    Returns:
        Seconds that the first case took longer than the median case of its subject, and the
        seconds of all cases without them.
    """
    seconds = [row.seconds for row in rows]
    if not rows:
        return 0.0, seconds
    usual = [row.seconds for row in rows[1:] if row.subject == rows[0].subject] or seconds[:1]
    extra = max(0.0, seconds[0] - median(usual))
    return extra, [seconds[0] - extra, *seconds[1:]]


def guessed_seconds(cases: Sequence[Case]) -> list[float]:
    """Return how long each case may take, where no times are recorded.

    What a forward, a backward or an optimizer step takes is the mean over the blocks or the models
    of one run of the suite ``smoke``; the ratio of the two is what matters.
    """
    return [_STEP_SECONDS[case.subject.kind] * _steps(case.assignment) for case in cases]


def _steps(values: dict[str, Value]) -> int:
    return len(build_program(values).steps)


def _rows(folder: Path) -> list[Row]:
    try:
        return read_rows(folder)
    except FileNotFoundError:
        raise StoreError(f"{folder} has no results") from None
