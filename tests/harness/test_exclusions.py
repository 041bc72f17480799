"""Exclusions that only a run can prove: what the ordinary arm or torch's checkpoint does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.arms import ORDINARY, arm_named
from harness.findings import NEVER_REPLAYED
from harness.importing import load
from harness.job import make_job
from harness.ranks import RankPool
from harness.row import Row
from harness.runner import RunOptions, run_case
from matrix.case import Case
from matrix.constraints import CONSTRAINTS, Constraint, constraints_on, exclusion
from matrix.subject import NOT_TRACED
from matrix.subjects import SUBJECTS, Subject, subject_named
from matrix.values import Value
from wcn_ckpt import replay_options

ARMS = f"{Path(__file__).parent}/exclusion_arms.py"
TASKS = f"{Path(__file__).parent}/rank_tasks.py"
SLOW = "inductor"


def cells(rule: Constraint) -> list[Case]:
    """Return every cell of a rule with the other axes at defaults, or what makes it apply.

    What fails to compile leaves ranks that are replaced: of several such subjects only the first.
    """
    named = [name for name in rule.when if name not in ("subject", "batch_norm")]
    rule = constraints_on(SUBJECTS, constraints=(rule,))[0]
    subjects = [str(name) for name in rule.when.get("subject", ("readme",))]
    if "inside" in rule.when.get("compile", ()):
        del subjects[1:]
    found = []
    for subject, *chosen in itertools.product(subjects, *(rule.when[name] for name in named)):
        values: dict[str, Value] = dict(zip(named, chosen, strict=True))
        if SLOW in chosen:
            continue
        if "static_graph" in values or "sync_bn" in values:
            values.setdefault("wrapper", "ddp")
        if "fsdp_units" in values or "mixed_precision" in values:
            values["wrapper"] = "fsdp2"
        found.append(Case.of(subject_named(subject), values))
    return found


def proofs(kind: str) -> list[Case]:
    return [case for rule in CONSTRAINTS if rule.kind == kind for case in cells(rule)]


def run(pool: RankPool, case: Case, arm: str) -> Row:
    assert exclusion(case.cell) is not None
    return run_case(case, pool, RunOptions(arm=arm_named(arm), seed=0))


def run_mean(pool: RankPool, case: Case) -> list[Any]:
    job = make_job(case, arm=ORDINARY, seed=0)
    return [result.value for result in pool.run(f"{TASKS}:is_mean_to_a_millionth", job, 30.0)]


@pytest.mark.parametrize("case", proofs("raises"), ids=lambda case: case.id)
def test_the_ordinary_arm_raises(rank_pool: RankPool, case: Case) -> None:
    row = run(rank_pool, case, "ordinary")

    assert row.outcome == "error"
    assert "the ordinary arm itself raised" in row.findings[0].cause


@pytest.mark.parametrize("case", proofs("checkpoint_raises"), ids=lambda case: case.id)
def test_torchs_own_checkpoint_raises(rank_pool: RankPool, case: Case) -> None:
    row = run(rank_pool, case, f"{ARMS}:bare")

    assert row.outcome == "error"
    assert "the ordinary arm itself" not in row.findings[0].cause


@pytest.mark.parametrize("case", proofs("meaningless"), ids=lambda case: case.id)
def test_the_ordinary_arm_is_wrong_or_computes_nothing(rank_pool: RankPool, case: Case) -> None:
    if case.assignment["backward"] == "autograd.grad":
        row = run(rank_pool, case, f"{ARMS}:no_gradients")
        assert row.outcome == "never_replayed"
        return
    if case.assignment["fsdp_units"] == "inside":
        assert run_mean(rank_pool, case) == [False, False]
        assert run_mean(rank_pool, replace(case, subject=subject_named("rebound"))) == [True, True]
        return

    row = run(rank_pool, case, "ordinary")

    assert row.outcome == "differs"
    assert any(finding.path != NEVER_REPLAYED for finding in row.findings)


# Torch's checkpoint updates running statistics twice.
@pytest.mark.parametrize(
    ("subject", "without"), [("pre-norm", {}), ("spaceformer", {"running_stats": False})]
)
def test_whether_torchs_checkpoint_raises_is_drawn_at_random(
    rank_pool: RankPool, subject: str, without: dict[str, Value]
) -> None:
    (rule,) = (rule for rule in CONSTRAINTS if rule.kind == "by_chance")
    assert subject in rule.when["subject"]
    values = {name: held[0] for name, held in rule.when.items() if name != "subject"}
    case = Case.of(subject_named(subject), {**values, **without, "sites": "scattered"})
    assert exclusion(case.cell) is rule

    bare = arm_named(f"{ARMS}:bare")
    options = [RunOptions(arm=bare, seed=seed, localized=False) for seed in range(8)]
    outcomes = {run_case(case, rank_pool, chosen).outcome for chosen in options}

    assert outcomes == {"expected_difference", "error"}


WITHOUT = [subject for subject in SUBJECTS if "compile" not in subject.options]


@pytest.mark.parametrize("subject", WITHOUT, ids=lambda subject: subject.name)
def test_dynamo_traces_no_forward_of_a_subject_without_the_axis(subject: Subject) -> None:
    torch.manual_seed(0)
    module = load(subject.factory)(**subject.arguments)
    inputs = load(subject.inputs)(seed=0, rank=0, microbatch=0, **subject.input_arguments)
    compiled = torch.compile(module, backend="eager", fullgraph=True)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(*(inputs if isinstance(inputs, tuple) else (inputs,)))


INSIDE = [s for s in SUBJECTS if NOT_TRACED in s.narrowings]


@pytest.mark.parametrize("subject", INSIDE, ids=lambda subject: subject.name)
def test_a_boundary_with_read_state_refuses_the_compiler(subject: Subject) -> None:
    module = load(subject.factory)(**subject.arguments, use_checkpoint=True)
    replay_options(module, allow_compile=True)
    inputs = load(subject.inputs)(seed=0, rank=0, microbatch=0, **subject.input_arguments)

    with pytest.raises(RuntimeError, match="torch.compile would replay it wrongly"):
        torch.compile(module, backend="eager", fullgraph=True)(inputs)
