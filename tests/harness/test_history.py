from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.history import estimated_seconds, failed_cases, latest_folder, remember
from harness.ranks import launch
from harness.request import judging_options
from harness.row import Outcome, Row
from harness.store import Store
from matrix.case import parse_case


def results(folder: Path, *rows: tuple[str, float, Outcome, int]) -> Path:
    with Store(folder, {}) as store:
        for case_id, seconds, outcome, seed in rows:
            case = parse_case(case_id)
            store.append(
                Row(
                    case=case.id,
                    subject=case.subject.name,
                    axes=case.assignment,
                    seed=seed,
                    arm="checkpointed",
                    ranks=2,
                    outcome=outcome,
                    seconds=seconds,
                )
            )
    return folder


def test_the_latest_folder_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert latest_folder() is None

    out = tmp_path / "elsewhere"
    out.mkdir()
    remember(Path("elsewhere"))
    assert latest_folder() == out

    out.rmdir()
    assert latest_folder() is None


def test_failed_cases_come_with_their_seeds(tmp_path: Path) -> None:
    folder = results(
        tmp_path,
        ("basic", 1.0, "equal", 0),
        ("basic,steps=3", 1.0, "differs", 0),
        ("dropout", 1.0, "expected_difference", 1),
        ("readme", 1.0, "crashed", 1),
    )

    failed = failed_cases(folder)

    assert {seed: [case.id for case in cases] for seed, cases in failed.items()} == {
        0: ["basic,steps=3"],
        1: ["readme"],
    }


def test_time_goes_by_the_steps_of_a_case_on_its_subject(tmp_path: Path) -> None:
    # Three steps of a program each: forward, backward, optimizer.
    folder = results(tmp_path, ("basic", 3.0, "equal", 0), ("readme", 0.3, "equal", 0))

    def estimate(*ids: str) -> float | None:
        return estimated_seconds([parse_case(case_id) for case_id in ids], folder)

    assert estimate("basic,bn_momentum=1.0") == pytest.approx(3.0)
    assert estimate("basic,steps=3", "readme") == pytest.approx(9.0 + 0.3)
    assert estimate("dropout") == pytest.approx(3 * 3.3 / 6)


def test_without_recorded_cases_there_is_no_estimate(tmp_path: Path) -> None:
    assert estimated_seconds([parse_case("basic")], results(tmp_path)) is None


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no results"):
        failed_cases(tmp_path)


ASKED = {"arm": "torch_checkpoint", "ranks": 1, "device": "cpu", "backend": "gloo"}


@pytest.fixture
def _latest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Store(Path("out"), {**ASKED, "suite": "pr", "seed": 3}):
        remember(Path("out"))


NOTHING_TYPED = dict.fromkeys(("arm", "ranks", "group_size", "device", "backend"))


@pytest.mark.usefixtures("_latest_run")
@pytest.mark.parametrize(
    ("typed", "judging"),
    [
        ({}, ASKED),
        ({"arm": "checkpointed"}, {**ASKED, "arm": "checkpointed"}),
        ({"device": "cpu"}, ASKED),
        ({"ranks": 4}, {**ASKED, "ranks": 4}),
        ({"ranks": 4, "group_size": 2}, {**ASKED, "ranks": 4, "group_size": 2}),
        ({"group_size": 1}, {**ASKED, "ranks": 2, "group_size": 1}),
    ],
)
def test_failures_are_repeated_as_they_were_judged_unless_something_else_is_typed(
    typed: dict[str, Any], judging: dict[str, Any]
) -> None:
    options = {**NOTHING_TYPED, **typed}

    assert judging_options(True, **options) == judging
    defaults = {"ranks": 2, **typed}
    assert judging_options(False, **options) == defaults


@pytest.mark.usefixtures("_latest_run")
def test_cases_are_not_repeated_on_another_device() -> None:
    with pytest.raises(ValueError, match="--device cuda, but the cases .* are on cpu; leave"):
        judging_options(True, **{**NOTHING_TYPED, "device": "cuda"})


@pytest.mark.usefixtures("_latest_run")
def test_ranks_of_torchrun_repeat_cases_in_groups_of_the_size_that_they_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = SimpleNamespace(launch=SimpleNamespace(world_size=4))
    monkeypatch.setattr(launch, "_leader", leader)

    assert judging_options(True, **NOTHING_TYPED) == {**ASKED, "ranks": 4, "group_size": 1}
