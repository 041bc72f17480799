from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from harness.importing import load
from harness.job import make_job
from matrix import configure
from matrix.axes import AXES
from matrix.case import Case
from matrix.constraints import CONSTRAINTS, Constraint, constraints_on, exclusion
from matrix.programs import build_program
from matrix.subjects import NO_BATCH_NORM, SUBJECTS, Subject, subject_named
from matrix.values import Value

RULES = constraints_on(SUBJECTS)


def cells(rule: Constraint) -> list[dict[str, Value]]:
    choices = [
        rule.when.get(axis.name, axis.values[:1] if axis.name not in rule.when else ())
        for axis in AXES
    ]
    names = [axis.name for axis in AXES]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*choices)]


@pytest.mark.parametrize(
    "rule", [rule for rule in CONSTRAINTS if rule.kind == "inapplicable"], ids=lambda r: r.text
)
def test_an_inapplicable_option_gives_the_same_program_as_an_allowed_cell(rule: Constraint) -> None:
    """Leaving the cell out loses nothing: an allowed cell runs that very program."""
    for cell in cells(rule):
        allowed = [
            {**cell, name: value}
            for name in rule.when
            for axis in AXES
            if axis.name == name
            for value in axis.values
            if exclusion({**cell, name: value}) is None
        ]
        assert any(build_program(cell) == build_program(other) for other in allowed)


def test_a_selective_policy_takes_the_place_of_the_users_context_function() -> None:
    """The one exclusion of an option that shapes the subject and not the program."""
    users, model_call = (load("matrix.blocks:MyBlock")(channels=2) for _ in range(2))
    for block, how in ((users, "user_context"), (model_call, "model_call")):
        configure.enable(block, how)
        configure.selective(block, True)

    assert users._gradient_checkpointing_func.keywords == (
        model_call._gradient_checkpointing_func.keywords
    )


@pytest.mark.parametrize(
    "rule",
    [rule for rule in RULES if "subject" in rule.when and rule.kind == "inapplicable"],
    ids=lambda r: list(r.when)[1],
)
def test_what_a_subject_leaves_out_changes_nothing_in_it(rule: Constraint) -> None:
    """It configures the subject to what the default does, or the subject has no such option."""
    for name, (axis_name, values) in itertools.product(rule.when["subject"], [*rule.when.items()]):
        if axis_name in ("subject", "compile"):  # see tests/harness/test_exclusions.py
            continue
        (axis,) = [axis for axis in AXES if axis.name == axis_name]
        subject = subject_named(str(name))
        for value in values:
            if axis.inputs:
                with pytest.raises(TypeError, match="unexpected keyword argument"):
                    inputs_of(subject, **axis.inputs[value])
                continue
            before = shape(load(subject.factory)(**subject.arguments))
            try:
                module = load(subject.factory)(
                    **{**subject.arguments, **axis.construct.get(value, {})}
                )
            except TypeError as error:
                assert "unexpected keyword argument" in str(error)
                continue
            if axis.configure is not None:
                load(axis.configure)(module, value)
            assert shape(module) == before


def shape(module: nn.Module) -> tuple[str, list[str]]:
    return repr(module), list(module.state_dict())


def inputs_of(subject: Subject, **more: Any) -> Any:
    return load(subject.inputs)(
        **{"seed": 0, "rank": 0, "microbatch": 0, **subject.input_arguments, **more}
    )


def test_what_is_run_elsewhere_is_allowed_there() -> None:
    (rule,) = [rule for rule in CONSTRAINTS if rule.kind == "elsewhere"]
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.get_autocast_dtype("cuda") == torch.float16
    for cell in cells(rule):
        assert exclusion({**cell, "device": "cuda"}) is None


def test_every_constraint_has_a_reason() -> None:
    for rule in RULES:
        assert len(rule.reason.split()) > 5
    # The other kinds are proved by running the arms, in tests/harness/test_exclusions.py.
    assert {rule.kind for rule in RULES} <= {
        *("inapplicable", "elsewhere", "raises", "checkpoint_raises", "meaningless"),
        "by_chance",
    }


def test_a_partial_cell_is_excluded_once_all_named_axes_are_there() -> None:
    assert exclusion({"wrapper": "none"}) is None
    assert exclusion({"wrapper": "none", "broadcast_buffers": True}) is None
    assert exclusion({"wrapper": "ddp", "broadcast_buffers": False}) is None
    assert exclusion({"wrapper": "none", "broadcast_buffers": False}) is CONSTRAINTS[0]


def test_a_constraint_may_name_the_subject() -> None:
    rule = Constraint({"subject": ("basic",), "wrapper": ("ddp",)}, "raises", "for this test only")

    assert exclusion({"subject": "basic", "wrapper": "ddp"}, (rule,)) is rule
    assert exclusion({"subject": "other", "wrapper": "ddp"}, (rule,)) is None


def test_a_constraint_on_batch_norm_is_one_on_every_subject_that_may_have_one() -> None:
    """Subjects of the user's own are no exception, nor is one that says nothing of it."""
    unknown = Subject(name="own", factory="a:b", inputs="c:d", doc="")
    without = replace(unknown, name="without", narrowings=(NO_BATCH_NORM,))
    sharded: dict[str, Value] = {"wrapper": "fsdp2", "mixed_precision": "bf16"}

    rules = constraints_on((unknown, without))

    for subject, batch_norm in ((unknown, True), (without, False), (subject_named("ptv3"), True)):
        case = Case.of(subject, sharded)
        assert (exclusion(case.cell) is not None) == batch_norm
        assert exclusion(Case.of(subject, {**sharded, "running_stats": False}).cell) is None
    (named,) = [rule for rule in rules if "mixed_precision" in rule.when and "sync_bn" in rule.when]
    assert named.when["subject"] == ("own",)
    assert not any("batch_norm" in rule.when for rule in rules)


def test_a_constraint_on_batch_norm_and_an_optional_axis_needs_both() -> None:
    rules = [rule for rule in CONSTRAINTS if {"batch_norm", "compile"} <= rule.when.keys()]
    assert rules

    for rule in rules:
        named = constraints_on(SUBJECTS, constraints=(rule,))[0]
        assert named.when["subject"] == ("readme", "called-twice")


def test_subjects_that_leave_out_the_same_share_one_constraint() -> None:
    dropout, codebook = subject_named("dropout"), subject_named("codebook")

    added = constraints_on((dropout, codebook), constraints=())

    shared = [rule for rule in added if rule.when["subject"] == ("dropout", "codebook")]
    assert {name for rule in shared for name in rule.when} == {
        *("subject", "bn_momentum", "running_stats", "sync_bn", "dropout", "order", "sites"),
    }
    (own,) = [rule for rule in added if rule not in shared]
    assert own.when == {"subject": ("codebook",), "compile": ("aot_eager", "inductor")}


def test_the_constructor_value_adds_its_argument_to_the_factory() -> None:
    def arguments(how: str) -> dict[str, object]:
        case = Case.of(subject_named("dropout"), {"enable": how})
        return dict(make_job(case, arm="a:b", seed=0).arguments)

    assert arguments("constructor") == {"channels": 16, "use_checkpoint": True}
    assert arguments("injected") == {"channels": 16}
