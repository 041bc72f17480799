"""What the commands of the command line do, with their options resolved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.arms import Arm, arm_named
from harness.importing import check_source
from harness.ranks import RankPool
from harness.report.junit import write_junit
from harness.report.summary import write_summary
from harness.report.terminal import make_console, show_findings, show_progress, show_result
from harness.row import Row, exit_status
from harness.runner import RunOptions, run_case, run_cases
from harness.store import Store
from matrix.axes import axis_named
from matrix.case import Case, parse_case
from matrix.constraints import exclusion
from matrix.subjects import SUBJECTS, subject_named
from matrix.suites import Selection, select, suite_named
from matrix.values import Value

RESULTS_ROOT = Path("ckpt-lab-results")
"""Where results folders are made when none is given."""

_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The options of a run, as typed."""

    suite: str = "smoke"
    subjects: tuple[str, ...] = ()
    """Names; empty for all."""
    axes: tuple[str, ...] = ()
    """``name=v1,v2``; an axis that is not named keeps all its values."""
    arm: str = "checkpointed"
    ranks: int = 2
    out: Path | None = None
    """Results folder; None for a fresh one."""
    seed: int = 0
    case_timeout: float = 60.0
    stop_early: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        """Refuse an arm that does not exist."""
        resolve_arm(self.arm)

    def select(self) -> Selection:
        """Choose the cases.

        Raises:
            ValueError: If an option names something that does not exist.
        """
        return select(
            suite_named(self.suite),
            subjects=[subject_named(name) for name in dict.fromkeys(self.subjects)] or SUBJECTS,
            only=_parse_axes(self.axes),
            seed=self.seed,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What a resumed run must have in common with the run it continues."""
        return {
            "suite": self.suite,
            "subjects": list(self.subjects),
            "axes": list(self.axes),
            "arm": self.arm,
            "ranks": self.ranks,
            "seed": self.seed,
        }


def resolve_arm(name: str) -> Arm:
    """Return the arm with a short or importable name.

    Raises:
        ValueError: If there is none.
    """
    arm = arm_named(name)
    check_source(arm.install)
    return arm


def resolve_case(case_id: str) -> Case:
    """Return the case with an id.

    Raises:
        ValueError: If there is none, or a constraint excludes it; the message gives the reason.
    """
    case = parse_case(case_id)
    rule = exclusion(case.cell)
    if rule is not None:
        raise ValueError(f"case {case_id!r} is excluded ({rule.text}): {rule.reason}")
    return case


def run_suite(request: RunRequest, selection: Selection, console: Console | None = None) -> int:
    """Run cases, print and write the report.

    Args:
        request: The options.
        selection: The cases.
        console: Where to print; standard output by default.

    Returns:
        The exit status.

    Raises:
        harness.store.StoreError: If the results folder cannot be used.
        harness.ranks.RankStartError: If no ranks can be started.
    """
    console = console or make_console()
    folder = request.out or _fresh_folder(request.suite)
    options = RunOptions(
        arm=resolve_arm(request.arm), seed=request.seed, case_timeout=request.case_timeout
    )
    with Store(folder, request.identity, resume=request.resume) as store:
        rows = list(store.rows)
        done = {row.case for row in rows}
        pending = [case for case in selection.cases if case.id not in done]
        interrupted = False
        try:
            console.print(
                f"{len(pending)} cases on {request.ranks} ranks, arm {request.arm}"
                + (f" ({len(done)} done before)" if done else ""),
            )
            for row in _rows(pending, request, options, console):
                store.append(row)
                rows.append(row)
        except KeyboardInterrupt:
            interrupted = True
    show_result(rows, console)
    console.print(selection.coverage.text)
    write_junit(folder, rows)
    report = write_summary(folder, rows, _facts(request, selection))
    if interrupted:
        console.print(f"interrupted; continue with --resume --out {folder}")
    console.print(f"report: {report}")
    return _INTERRUPTED if interrupted else exit_status(rows)


def replay_case(
    case: Case,
    arm: Arm,
    *,
    ranks: int,
    seed: int,
    case_timeout: float,
    console: Console | None = None,
) -> int:
    """Run one case and print everything that was found.

    Args:
        case: The case.
        arm: The arm that is judged.
        ranks: Number of ranks.
        seed: Seed of the run that the case comes from.
        case_timeout: Seconds until the case counts as hung.
        console: Where to print; standard output by default.

    Returns:
        The exit status.
    """
    console = console or make_console()
    with RankPool(ranks) as pool:
        options = RunOptions(arm=arm, seed=seed, case_timeout=case_timeout)
        row = run_case(case, pool, options)
    show_findings(row, console, everything=True)
    return exit_status([row])


def _rows(
    pending: list[Case], request: RunRequest, options: RunOptions, console: Console
) -> Iterator[Row]:
    if not pending:
        return
    with RankPool(request.ranks) as pool:
        rows = run_cases(pending, pool, options, stop_early=request.stop_early)
        yield from show_progress(rows, len(pending), console)


def _parse_axes(texts: tuple[str, ...]) -> dict[str, tuple[Value, ...]]:
    only: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not of the form name=v1,v2")
        axis = axis_named(name)
        parsed = tuple(axis.parse(value) for value in dict.fromkeys(values.split(",")))
        only[name] = only.get(name, ()) + tuple(v for v in parsed if v not in only.get(name, ()))
    return only


def _fresh_folder(suite: str) -> Path:
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{suite}"
    folder, number = RESULTS_ROOT / stem, 1
    while folder.exists():
        number += 1
        folder = RESULTS_ROOT / f"{stem}-{number}"
    return folder


def _facts(request: RunRequest, selection: Selection) -> dict[str, Any]:
    return {
        "suite": request.suite,
        "arm": request.arm,
        "ranks": request.ranks,
        "seed": request.seed,
        "coverage": selection.coverage.text.replace("\n", "; "),
    }
