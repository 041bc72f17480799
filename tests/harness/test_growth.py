"""A new axis, constraint, subject or arm is one place and a few lines, end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.arms import arm_named
from harness.pytest_plugin import CheckCase
from harness.ranks import RankPool
from harness.runner import RunOptions, run_cases
from matrix.axes import AXES, Axis
from matrix.case import Case, parse_case
from matrix.constraints import CONSTRAINTS, Constraint, constraints_on, exclusion
from matrix.subjects import Subject
from matrix.suites import select, suite_named
from matrix.values import Value

HERE = Path(__file__).parent
FREEZE = Axis("frozen", (False, True), False, "whether the first weight is trained",
              configure=f"{HERE}/toy_axis.py:freeze")  # fmt: skip
BREAK = replace(FREEZE, name="broken", configure=f"{HERE}/toy_axis.py:break_batch_norm")
TOY = Subject(
    name="toy",
    factory=f"{HERE}/toy_axis.py:ToyBlock",
    arguments={"width": 4},
    inputs=f"{HERE}/toy_axis.py:batch",
    input_arguments={"width": 4},
    doc="for this test",
)
OPTIONS = RunOptions(arm=arm_named("checkpointed"))


def test_a_new_axis_with_a_constraint_runs_end_to_end_on_a_new_subject(
    rank_pool: RankPool,
) -> None:
    axes = (*AXES, FREEZE)
    rule = Constraint({"frozen": (True,), "backward": ("retained",)}, "inapplicable", "a toy rule")
    only: dict[str, tuple[Value, ...]] = {"bn_momentum": (0.1,), "autocast": ("off",)}

    selection = select(
        suite_named("smoke"),
        subjects=[TOY],
        axes=axes,
        only=only,
        constraints=(*CONSTRAINTS, rule),
    )
    rows = list(run_cases(selection.cases, rank_pool, OPTIONS))

    assert {row.outcome for row in rows} == {"equal"}
    assert {row.axes["frozen"] for row in rows} == {False, True}
    assert {row.axes["wrapper"] for row in rows} == {"none", "ddp", "fsdp2"}
    assert not [row for row in rows if row.axes["frozen"] and row.axes["backward"] == "retained"]
    assert any(reason.endswith("a toy rule") for reason in selection.coverages[0].ruled_out)
    assert all(parse_case(row.case, (TOY,), axes).id == row.case for row in rows)


def test_an_exclusion_of_batch_norm_holds_for_a_new_subject_that_has_one(
    rank_pool: RankPool,
) -> None:
    case = Case.of(TOY, {"wrapper": "fsdp2", "mixed_precision": "bf16"})

    rule = exclusion(case.cell, constraints_on([TOY]))
    (row,) = run_cases([case], rank_pool, RunOptions(arm=arm_named("ordinary")))

    assert rule is not None and rule.reason.startswith("BatchNorm refuses running statistics")
    assert row.outcome == "error"
    assert "the ordinary arm itself raised" in row.findings[0].cause


def test_the_value_of_a_new_axis_reaches_every_rank(rank_pool: RankPool) -> None:
    cases = [Case.of(TOY, {"broken": value}, (*AXES, BREAK)) for value in (False, True)]

    right, wrong = run_cases(cases, rank_pool, OPTIONS)

    assert (right.case, right.outcome) == ("toy", "equal")
    assert (wrong.case, wrong.outcome) == ("toy,broken=on", "error")
    assert [finding.rank for finding in wrong.findings if finding.point == "set-up"] in (
        [0, 1],
        [1, 0],
    )
    assert "the value of the toy axis arrived" in str(wrong.findings[0].got)


@pytest.mark.parametrize("wrapper", ["none", "ddp"])
def test_where_the_ordinary_arm_is_not_reproducible_its_noise_is_the_tolerance(
    rank_pool: RankPool, wrapper: str
) -> None:
    noisy = replace(TOY, name="noisy", factory=f"{HERE}/toy_axis.py:NoisyBlock")
    case = Case.of(noisy, {"wrapper": wrapper, "backward": "plain"})

    (row,) = run_cases([case], rank_pool, OPTIONS)

    assert row.noise is not None and row.noise > 0
    assert row.tolerances["outputs/0"] <= row.noise
    assert all(path.startswith(("outputs/", "losses/")) for path in row.tolerances)
    for finding in row.findings:
        assert finding.max_abs is not None and finding.max_abs > finding.tolerance
        assert finding.path.startswith(("outputs", "losses"))
        assert "runs of the ordinary arm and a perturbed one differ" in finding.tolerance_source


def test_the_plugin_fails_a_test_with_the_findings_and_the_replay_command(
    check_case: CheckCase,
) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        check_case(Case.of(TOY), arm="torch_checkpoint")

    assert "BatchNorm1d 'layers.1' was updated twice" in str(failure.value)
    assert "ckpt-lab replay toy --arm torch_checkpoint --seed 0 --ranks 2" in str(failure.value)
