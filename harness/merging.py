"""``ckpt-lab merge``: the shards of a run become one results folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.baseline import Baseline, read_baseline
from harness.checklist.families import family_checklists
from harness.checklist.points import Checklist
from harness.ranks.launch import open_groups
from harness.report.charts import Chart
from harness.report.checklists import cost_charts, show_checklists
from harness.report.facts import coverage_texts, run_facts, write_reports
from harness.report.terminal import make_console, show_result, show_vanished
from harness.request import SuiteRequest, resolve_arm
from harness.row import Row, exit_status
from harness.shards import Shard
from harness.store import Store, read_rows, read_run
from matrix.suites import Selection

_INCOMPLETE = 3
_KEPT = ("determinism", "arm_file")


@dataclass(frozen=True)
class _Part:
    """One shard's folder."""

    folder: Path
    shard: Shard
    run: Mapping[str, Any]
    rows: tuple[Row, ...]


def merge(folders: Sequence[Path], out: Path, baseline: Path | None = None) -> int:
    """Merge results folders of shards into one, as one run would have made it.

    Args:
        folders: The results folders, in any order.
        out: The merged one; must not be there.
        baseline: The file of known findings with which the shards ran, if there was one.

    Returns:
        The exit status: that of the rows; 3 where a shard or a case is missing.

    Raises:
        ValueError: If the folders do not belong together, or one has no results.
        harness.store.StoreError: If a folder cannot be read, or ``out`` cannot be used.
    """
    parts = _checked([_read(folder) for folder in folders])
    known = read_baseline(baseline) if baseline else Baseline()
    asked = {**parts[0].run["asked"], "shard": None}
    selections = _suite(asked).select()
    rows = _ordered([row for part in parts for row in part.rows], selections)
    notes = {name: parts[0].run[name] for name in _KEPT if name in parts[0].run}
    notes["shards"] = [dict(part.run) for part in parts]
    with Store(out, asked, notes=notes) as store:
        for row in rows:
            store.append(row)
    console = make_console()
    coverage = coverage_texts(selections, rows)
    vanished = known.vanished(rows)
    show_result(rows, console)
    show_vanished(vanished, console)
    for text in dict.fromkeys(coverage.values()):
        console.print(text)
    missing = _missing(parts) or len(rows) < sum(len(s.cases) for s in selections.values())
    checklists, charts = _checklists(asked, rows) if not missing else ([], [])
    show_checklists(checklists, console)
    facts = run_facts(asked, coverage)
    report = write_reports(out, rows, facts, vanished, charts=charts, checklists=checklists)
    if missing:
        absent = ", ".join(_missing(parts)) or "cases of shards that ended early"
        console.print(f"missing: {absent}")
    console.print(f"report: {report}")
    return _INCOMPLETE if missing else exit_status(rows)


def _suite(asked: Mapping[str, Any]) -> SuiteRequest:
    return SuiteRequest(
        suite=asked["suite"],
        subjects=tuple(asked["subjects"]),
        axes=tuple(asked["axes"]),
        seed=asked["seed"],
        seeds=asked["seeds"],
        device=asked["device"],
    )


def _ordered(rows: list[Row], selections: Mapping[int, Selection]) -> list[Row]:
    places = [(case.id, seed) for seed, s in selections.items() for case in s.cases]
    order = {place: number for number, place in enumerate(places)}
    for row in rows:
        if (row.case, row.seed) not in order:
            raise ValueError(f"{row.case!r} is no case of this suite: other code has run it")
    return sorted(rows, key=lambda row: order[row.case, row.seed])


def _checklists(
    asked: Mapping[str, Any], rows: Sequence[Row]
) -> tuple[list[Checklist], Sequence[Chart]]:
    """Measure the six points of each family where one run would have: on a whole suite."""
    if asked["subjects"] or asked["axes"] or asked["device"] != "cpu":
        return [], []
    with open_groups(asked["ranks"], asked["ranks"], "gloo") as (group,):
        checklists, measured = family_checklists(rows, resolve_arm(asked["arm"]), group)
    return checklists, cost_charts(measured)


def _read(folder: Path) -> _Part:
    try:
        run = read_run(folder)
        rows = tuple(read_rows(folder))
    except FileNotFoundError as error:
        raise ValueError(f"{folder} is no results folder: {error}") from None
    shard = run["asked"].get("shard")
    if shard is None:
        raise ValueError(f"{folder} holds a whole run, no shard; there is nothing to merge")
    return _Part(folder, Shard.parse(shard), run, rows)


def _checked(parts: list[_Part]) -> list[_Part]:
    if not parts:
        raise ValueError("give the results folders of the shards")
    parts = sorted(parts, key=lambda part: part.shard)
    first = parts[0]
    for before, part in zip(parts, parts[1:], strict=False):
        if part.shard == before.shard:
            raise ValueError(f"{before.folder} and {part.folder} are both shard {part.shard.text}")
    for part in parts[1:]:
        for name in {*first.run["asked"], *part.run["asked"]} - {"shard"}:
            ours, theirs = first.run["asked"].get(name), part.run["asked"].get(name)
            if ours != theirs:
                raise ValueError(
                    f"{first.folder} was run with {name}={ours!r}, {part.folder} with {theirs!r}"
                )
        if (part.shard.count, part.run.get("cut")) != (first.shard.count, first.run.get("cut")):
            raise ValueError(
                f"{first.folder} and {part.folder} are shards of different cuts; give every shard "
                "the same --times, and run the same code"
            )
    return parts


def _missing(parts: Sequence[_Part]) -> list[str]:
    there = {part.shard.number for part in parts}
    count = parts[0].shard.count
    return [f"shard {number}/{count}" for number in range(1, count + 1) if number not in there]
