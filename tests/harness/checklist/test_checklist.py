"""The six points, of families and of faults."""

from __future__ import annotations

import pytest

from harness.arms import arm_named
from harness.checklist.answers import checklist
from harness.checklist.families import FAMILIES, family_checklists
from harness.checklist.measurement import measured
from harness.checklist.points import POINTS
from harness.job import make_job
from harness.ranks import RankPool
from harness.row import Row
from harness.runner import RunOptions, run_case
from matrix.case import parse_case
from matrix.subjects import SUBJECTS


def test_every_subject_is_in_one_family() -> None:
    listed = [name for family in FAMILIES for name in family.subjects]

    assert sorted(listed) == sorted(subject.name for subject in SUBJECTS)


def test_there_are_six_points_in_order() -> None:
    assert [point.number for point in POINTS] == [1, 2, 3, 4, 5, 6]


def run(pool: RankPool, case: str, arm: str) -> Row:
    return run_case(parse_case(case), pool, RunOptions(arm=arm_named(arm), localized=False))


def test_the_checklist_of_a_family_that_is_right_passes(rank_pool: RankPool) -> None:
    rows = [run(rank_pool, "dit", "checkpointed")]

    (found,), figures = family_checklists(rows, arm_named("checkpointed"), rank_pool)

    assert [answer.status for answer in found.answers] == ["pass"] * 6
    assert found.summary == "pass"
    costs = figures["DiT, dense"]
    assert costs.judged.saved_bytes is not None and costs.ordinary.saved_bytes is not None
    assert costs.judged.saved_bytes < costs.ordinary.saved_bytes
    assert costs.judged.step > 0


@pytest.mark.parametrize(
    ("arm", "failing"),
    [("torch_checkpoint", ["mutable state"]), ("ordinary", ["boundaries", "forward calls"])],
)
def test_a_wrong_arm_fails_at_the_point_it_breaks(
    rank_pool: RankPool, arm: str, failing: list[str]
) -> None:
    rows = [run(rank_pool, "readme", arm)]

    (found,), _ = family_checklists(rows, arm_named(arm), rank_pool)

    assert [answer.point.name for answer in found.findings] == failing
    assert all(answer.cause and answer.remedy for answer in found.findings)


def test_without_rows_and_without_a_step_nothing_is_claimed() -> None:
    found = checklist("nothing", [], "no rank was there")

    assert {answer.status for answer in found.answers} == {"not measured"}


def test_types_of_a_geometry_are_named() -> None:
    job = make_job(parse_case("basic"), arm=arm_named("checkpointed").install, seed=0)

    figures = measured(job, steps=1)

    assert "Voxels" in figures.inputs and "Voxels" in figures.outputs
    assert [(b.kind, b.forwards, b.replays) for b in figures.boundaries] == [("BasicBlock", 1, 1)]
