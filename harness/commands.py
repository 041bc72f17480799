"""What the commands of the command line do, with their options resolved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.arms import ARMS, Arm
from harness.baseline import Baseline, read_baseline
from harness.history import RESULTS_ROOT, estimated_seconds, latest_folder, remember
from harness.ranks import RankPool
from harness.report.junit import write_junit
from harness.report.page import write_page
from harness.report.summary import write_summary
from harness.report.terminal import (
    make_console,
    show_findings,
    show_progress,
    show_result,
    show_vanished,
)
from harness.request import RunRequest, resolve_arm
from harness.row import Row, exit_status
from harness.runner import RunOptions, check_arm, run_case
from harness.store import Store
from matrix.case import Case
from matrix.suites import Selection

_INTERRUPTED = 130


def run_suite(
    request: RunRequest, selections: Mapping[int, Selection], console: Console | None = None
) -> int:
    """Run cases, print and write the report.

    Args:
        request: The options.
        selections: The cases, by seed.
        console: Where to print; standard output by default.

    Returns:
        The exit status.

    Raises:
        ValueError: If the baseline file cannot be read.
        harness.store.StoreError: If the results folder cannot be used.
        harness.runner.ArmError: If the arm cannot be loaded; no results folder is made then.
        harness.ranks.RankStartError: If no ranks can be started.
    """
    console = console or make_console()
    baseline = read_baseline(request.baseline) if request.baseline else Baseline()
    folder = request.out or _fresh_folder(request.suite)
    arm = resolve_arm(request.arm)
    if arm not in ARMS:
        with RankPool(1) as pool:
            check_arm(arm, pool, request.case_timeout)
    with Store(folder, request.identity, resume=request.resume) as store:
        _remember(folder, console)
        rows = [baseline.mark(row) for row in store.rows]
        done = {(row.case, row.seed) for row in rows}
        pending = [
            (case, seed)
            for seed, selection in selections.items()
            for case in selection.cases
            if (case.id, seed) not in done
        ]
        interrupted = False
        try:
            console.print(
                f"{len(pending)} cases on {request.ranks} ranks, arm {request.arm}"
                + (f" ({len(done)} done before)" if done else ""),
            )
            for row in _rows(pending, arm, request, baseline, console):
                store.append(row)
                rows.append(row)
        except KeyboardInterrupt:
            interrupted = True
    vanished = baseline.vanished(rows)
    ran = {(row.case, row.seed) for row in rows}
    coverage = {seed: _coverage_text(seed, s, ran) for seed, s in selections.items()}
    show_result(rows, console)
    show_vanished(vanished, console)
    for text in dict.fromkeys(coverage.values()):
        console.print(text)
    facts = _facts(request, coverage)
    write_junit(folder, rows)
    write_summary(folder, rows, facts, vanished)
    report = write_page(folder, rows, facts, vanished)
    if interrupted:
        console.print(f"interrupted; continue with --resume --out {folder}")
    console.print(f"report: {report}")
    return _INTERRUPTED if interrupted else exit_status(rows)


def count_text(selections: Mapping[int, Selection]) -> str:
    """Return how many cases there are, how long they take and what they cover.

    Args:
        selections: The cases, by seed.
    """
    cases = [case for selection in selections.values() for case in selection.cases]
    folder = latest_folder()
    seconds = None if folder is None else estimated_seconds(cases, folder)
    time_text = (
        "no time estimate: no run is recorded in this folder"
        if seconds is None
        else f"about {_duration(seconds)}, by the times recorded in {folder}"
    )
    texts = [selection.coverage_text for selection in selections.values()]
    return "\n".join([f"{len(cases)} cases", time_text, *dict.fromkeys(texts)])


def replay_case(
    case: Case,
    arm: Arm,
    *,
    ranks: int,
    seed: int,
    case_timeout: float,
    backend: str = "auto",
    console: Console | None = None,
) -> int:
    """Run one case and print everything that was found.

    Args:
        case: The case.
        arm: The arm that is judged.
        ranks: Number of ranks.
        seed: Seed of the run that the case comes from.
        case_timeout: Seconds until the case counts as hung.
        backend: Backend of the process group, where the case is on CUDA.
        console: Where to print; standard output by default.

    Returns:
        The exit status.

    Raises:
        harness.runner.ArmError: If the arm cannot be loaded.
        harness.ranks.RankStartError: If no ranks can be started.
    """
    console = console or make_console()
    device = str(case.assignment["device"])
    with RankPool(ranks, backend=_pool_backend(device, backend)) as pool:
        check_arm(arm, pool, case_timeout)
        options = RunOptions(arm=arm, seed=seed, case_timeout=case_timeout)
        row = run_case(case, pool, options)
    show_findings(row, console, everything=True)
    return exit_status([row])


def _rows(
    pending: list[tuple[Case, int]],
    arm: Arm,
    request: RunRequest,
    baseline: Baseline,
    console: Console,
) -> Iterator[Row]:
    if not pending:
        return
    with RankPool(request.ranks, backend=_pool_backend(request.device, request.backend)) as pool:
        judged = (
            run_case(case, pool, RunOptions(arm=arm, seed=seed, case_timeout=request.case_timeout))
            for case, seed in pending
        )
        for row in show_progress(map(baseline.mark, judged), len(pending), console):
            yield row
            if request.stop_early and not row.passed:
                return


def _pool_backend(device: str, backend: str) -> str:
    return "gloo" if device == "cpu" else backend


def _remember(folder: Path, console: Console) -> None:
    try:
        remember(folder)
    except OSError as error:
        console.print(f"--last-failed and time estimates will not know this run: {error}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _fresh_folder(suite: str) -> Path:
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{suite}"
    folder, number = RESULTS_ROOT / stem, 1
    while folder.exists():
        number += 1
        folder = RESULTS_ROOT / f"{stem}-{number}"
    return folder


def _coverage_text(seed: int, selection: Selection, ran: set[tuple[str, int]]) -> str:
    """Return what the cases that ran cover, or that it is less than was asked for."""
    done = sum((case.id, seed) in ran for case in selection.cases)
    if done == len(selection.cases):
        return selection.coverage_text
    return (
        f"only {done} of {len(selection.cases)} cases ran (seed {seed}), "
        "so what the suite covers was not reached"
    )


def _facts(request: RunRequest, coverage: Mapping[int, str]) -> dict[str, Any]:
    return {
        "suite": "last failed" if request.last_failed else request.suite,
        "arm": request.arm,
        "ranks": request.ranks,
        "device": request.device,
        "seeds": ", ".join(map(str, coverage)),
        "coverage": "\n".join(dict.fromkeys(coverage.values())),
    }
