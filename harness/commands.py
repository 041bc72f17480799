"""What the commands of the command line do, with their options resolved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.arms import ARMS, Arm
from harness.baseline import Baseline, read_baseline
from harness.checklist.families import family_checklists
from harness.checklist.figures import Measurement
from harness.checklist.points import Checklist
from harness.determinism import SETTINGS
from harness.history import RESULTS_ROOT, estimated_seconds, latest_folder, remember
from harness.ranks import Ranks, RankStartError
from harness.ranks.launch import RanksLostError, current_leader, open_groups
from harness.report.checklists import cost_charts, show_checklists
from harness.report.facts import coverage_texts, run_facts, write_reports
from harness.report.terminal import (
    make_console,
    show_progress,
    show_result,
    show_vanished,
)
from harness.request import RunRequest, pool_backend, resolve_arm
from harness.resume import resume_command
from harness.revision import file_revision
from harness.row import Row, exit_status
from harness.runner import LOAD_SECONDS, RunOptions, check_arm, run_case
from harness.shards import SeededCase, cut
from harness.side_by_side import run_side_by_side
from harness.store import RUN_FILE, Store
from matrix.suites import Selection

_INTERRUPTED = 130
_LOST = 3


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
    folder, resume = _folder_to_use(request)
    arm = resolve_arm(request.arm)
    if arm not in ARMS:
        size = 1 if current_leader() is None else request.ranks
        with open_groups(size, size, "gloo") as (group,):
            check_arm(arm, group, max(LOAD_SECONDS, request.case_timeout))
    asked, notes = _asked_cases(request, selections)
    notes["arm_file"] = file_revision(arm.install)
    tag = request.shard.tag if request.shard else ""
    with Store(folder, request.identity, resume=resume, tag=tag, notes=notes) as store:
        if not request.last_failed:
            _remember(folder, console)
        rows = [baseline.mark(row) for row in store.rows]
        done = {(row.case, row.seed) for row in rows}
        pending = [(case, seed) for case, seed in asked if (case.id, seed) not in done]
        interrupted, lost = False, ""
        try:
            console.print(
                f"{len(pending)} cases on {_ranks_text(request)}, arm {request.arm}"
                + (f" ({len(done)} done before)" if done else ""),
            )
            for row in _rows(pending, arm, request, baseline, console):
                store.append(row)
                rows.append(row)
        except KeyboardInterrupt:
            interrupted = True
        except RanksLostError as error:
            lost = f"ranks were lost: {error}"
        except RankStartError as error:
            if not rows:
                raise
            lost = f"new ranks could not be started: {error}"
    vanished = baseline.vanished(rows)
    coverage = coverage_texts(selections, rows, request.shard)
    show_result(rows, console)
    show_vanished(vanished, console)
    for text in dict.fromkeys(coverage.values()):
        console.print(text)
    checklists: list[Checklist] = []
    measured: dict[str, Measurement] = {}
    if request.measures_families and not (interrupted or lost):
        size = 1 if current_leader() is None else request.ranks
        try:
            with open_groups(size, size, pool_backend(request.device, request.backend)) as (one,):
                checklists, measured = family_checklists(rows, arm, one)
        except KeyboardInterrupt:
            interrupted = True
        show_checklists(checklists, console)
    report = write_reports(
        folder,
        rows,
        run_facts(request.identity, coverage),
        vanished,
        charts=cost_charts(measured),
        checklists=checklists,
    )
    if lost or interrupted:
        command = resume_command(request, folder, torchrun=current_leader() is not None)
        console.print(
            f"{lost or 'interrupted'} after {len(rows)} of {len(asked)} cases; to go on: {command}"
        )
    elif request.repeats_all and len(rows) == len(asked):
        _remember(folder, console)  # only now: until it has ended, what failed is what it reruns
    console.print(f"report: {report}")
    if lost:
        return _LOST
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


def _rows(
    pending: list[SeededCase],
    arm: Arm,
    request: RunRequest,
    baseline: Baseline,
    console: Console,
) -> Iterator[Row]:
    if not pending:
        return

    def judge(item: SeededCase, group: Ranks) -> Row:
        case, seed = item
        options = RunOptions(arm=arm, seed=seed, case_timeout=request.case_timeout)
        return run_case(case, group, options)

    backend = pool_backend(request.device, request.backend)
    with open_groups(request.ranks, request.case_ranks, backend) as groups:
        judged = run_side_by_side(pending, groups, judge)
        for row in show_progress(map(baseline.mark, judged), len(pending), console):
            yield row
            if request.stop_early and not row.passed:
                return


def _remember(folder: Path, console: Console) -> None:
    try:
        remember(folder)
    except OSError as error:
        console.print(f"--last-failed and time estimates will not know this run: {error}")


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _asked_cases(
    request: RunRequest, selections: Mapping[int, Selection]
) -> tuple[list[SeededCase], dict[str, Any]]:
    """Return the cases of this run, and what ``run.json`` says about them."""
    notes: dict[str, Any] = {"determinism": dict(SETTINGS[request.device])}
    shard = request.shard
    whole = cut(selections, shard.count if shard else 1, request.times)
    if shard is None:
        return list(whole.cases), notes
    return whole.of(shard), {**notes, "cut": whole.digest}


def _ranks_text(request: RunRequest) -> str:
    if request.case_ranks == request.ranks:
        return f"{request.ranks} ranks"
    groups = request.ranks // request.case_ranks
    return f"{request.ranks} ranks in {groups} groups of {request.case_ranks}"


def _folder_to_use(request: RunRequest) -> tuple[Path, bool]:
    """Return the results folder, and whether a run in it is continued."""
    folder = request.out or _fresh_folder(request.suite)
    leader = current_leader()
    if leader is None:
        return folder, request.resume
    known = leader.note("folder")
    if known is not None:  # torchrun has started the ranks again
        folder = Path(known)
    leader.note("folder", str(folder))
    return folder, request.resume or (known is not None and (folder / RUN_FILE).exists())


def _fresh_folder(suite: str) -> Path:
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{suite}"
    folder, number = RESULTS_ROOT / stem, 1
    while folder.exists():
        number += 1
        folder = RESULTS_ROOT / f"{stem}-{number}"
    return folder
