from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.comparison import Change, compare, compare_folders
from harness.findings import CauseKind, Finding
from harness.report.compared import comparison_markdown, comparison_text, headline
from harness.row import Outcome, Row
from harness.store import RUN_FILE, Store

FINDING = Finding(
    rank=0,
    point="backward[0]",
    path="buffers/norm.running_mean[3]",
    expected=1.0,
    got=2.0,
    cause="updated twice",
    remedy="do not",
    kind=CauseKind.REPEATED_UPDATE,
)


def row(case: str, outcome: Outcome = "equal", *, seed: int = 0, **changed: object) -> Row:
    made = Row(
        case=case,
        subject="basic",
        axes={},
        seed=seed,
        arm="checkpointed",
        ranks=2,
        outcome=outcome,
        findings=() if outcome == "equal" else (FINDING,),
        seconds=1.0,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def results(folder: Path, *rows: Row, tag: str = "", **asked: object) -> Path:
    with Store(folder, asked, tag=tag) as store:
        for one in rows:
            store.append(one)
    return folder


def cases(changes: object) -> list[str]:
    return [change.row.case for change in changes]  # type: ignore[attr-defined]


def test_each_case_is_in_the_part_it_belongs_to() -> None:
    other = replace(FINDING, path="outputs/0", kind=CauseKind.ORDER_DRIFT)
    before = [
        row("same"),
        row("breaks"),
        row("repaired", "differs"),
        row("broken", "differs"),
        row("broken-otherwise", "differs"),
        row("gone"),
    ]
    after = [
        row("same"),
        row("breaks", "error"),
        row("repaired"),
        row("broken", "differs"),
        row("broken-otherwise", "differs", findings=(other,)),
        row("new"),
        row("new-and-wrong", "hung"),
    ]

    found = compare(before, after)

    assert cases(found.newly_failing) == ["breaks", "new-and-wrong"]
    assert cases(found.fixed) == ["repaired"]
    assert cases(found.failing_otherwise) == ["broken-otherwise"]
    assert (found.still_failing, found.common) == (1, 5)
    assert cases(found.only_before) == ["gone"]
    assert cases(found.only_after) == ["new", "new-and-wrong"]
    assert headline(found) == (
        "5 cases in both: 2 newly failing, 1 fixed, 1 failing otherwise, 1 failing as before"
    )


def test_the_index_of_a_finding_is_no_other_failure() -> None:
    moved = replace(FINDING, path="buffers/norm.running_mean[0]")

    found = compare([row("a", "differs")], [row("a", "differs", findings=(moved,))])

    assert (found.still_failing, list(found.failing_otherwise)) == (1, [])


def test_seeds_are_compared_each_with_its_own() -> None:
    before = [row("a", seed=0), row("a", "differs", seed=1)]
    after = [row("a", seed=0), row("a", seed=1)]

    found = compare(before, after)

    assert [(change.row.case, change.row.seed) for change in found.fixed] == [("a", 1)]
    assert "a seed 1: differs before, equal now" in comparison_text(found)


@pytest.mark.parametrize(
    ("noise", "told"),
    [
        ((None, None), 0),
        ((None, 0.0), 0),
        ((1e-6, 1.5e-6), 0),
        ((1e-6, 3e-6), 1),
        ((None, 1e-9), 1),
    ],
)
def test_noise_that_changed(noise: tuple[float | None, float | None], told: int) -> None:
    found = compare([row("a", noise=noise[0])], [row("a", noise=noise[1])])

    assert len(found.noise) == told


def test_times_that_changed_are_told_the_largest_change_first() -> None:
    before = [row(name) for name in ("a", "b", "c", "d", "e")]
    after = [
        row("a", seconds=2.5),
        row("b", seconds=9.0),
        row("c", seconds=0.2),
        row("d", seconds=1.1),
        row("e", "hung", seconds=60.0),
    ]

    found = compare(before, after)

    assert cases(found.slower) == ["b", "a"]
    assert cases(found.faster) == ["c"]
    assert found.seconds == (4.0, pytest.approx(12.8))
    assert found.time_ratio == pytest.approx(1.8)
    assert list(compare(before, after, time_factor=3.0).slower) == [Change(before[1], after[1])]


def test_short_changes_of_time_are_not_told() -> None:
    found = compare([row("a", seconds=0.001)], [row("a", seconds=0.05)])

    assert list(found.slower) == []


def test_folders_of_shards_are_compared_with_whole_ones(tmp_path: Path) -> None:
    whole = results(tmp_path / "whole", row("a"), row("b"), suite="pr")
    shards = results(tmp_path / "shards", row("b", "differs"), tag="2-of-2", suite="pr")
    (shards / "results.1-of-2.jsonl").write_text(json.dumps(row("a").to_dict()) + "\n")

    found = compare_folders(whole, shards)

    assert cases(found.newly_failing) == ["b"]
    assert (found.common, dict(found.settings)) == (2, {})


def test_other_settings_are_told(tmp_path: Path) -> None:
    before = results(tmp_path / "before", row("a"), suite="pr", seed=0)
    after = results(tmp_path / "after", row("a"), suite="pr", seed=1)
    run = json.loads((after / RUN_FILE).read_text())
    run["versions"]["torch"] = "3.0"
    (after / RUN_FILE).write_text(json.dumps(run))

    found = compare_folders(before, after)

    assert found.settings["seed"] == (0, 1)
    assert found.settings["torch"][1] == "3.0"
    assert "seed: 0 before, 1 now" in comparison_text(found)
    assert "| seed | `0` | `1` |" in comparison_markdown(found)


def test_the_command_ends_with_1_when_something_newly_fails(tmp_path: Path) -> None:
    good, bad = (
        results(tmp_path / name, row("a", outcome)) for name, outcome in OUTCOMES_OF_FOLDERS
    )

    def run(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
        return result.exit_code, result.stdout

    assert run(good, good)[0] == 0
    assert run(bad, good)[0] == 0
    status, text = run(good, bad)
    assert status == 1
    assert "a: equal before, differs now; updated twice" in text
    assert "ckpt-lab replay a --arm checkpointed --seed 0 --ranks 2" in text
    status, text = run(good, bad, "--markdown")
    assert status == 1
    assert "## Newly failing: 1\n" in text
    assert "| `a` | equal before, differs now | updated twice |" in text


OUTCOMES_OF_FOLDERS: list[tuple[str, Outcome]] = [("good", "equal"), ("bad", "differs")]


def test_long_lists_are_cut(tmp_path: Path) -> None:
    names = [f"case-{number}" for number in range(30)]

    found = compare([row(name) for name in names], [row(name, "differs") for name in names])

    assert "... and 10 more" in comparison_text(found)
    assert "and 10 more" in comparison_markdown(found)
