from __future__ import annotations

import itertools

import pytest

from matrix.axes import AXES
from matrix.constraints import CONSTRAINTS, Constraint, exclusion
from matrix.programs import build_program
from matrix.values import Value


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
def test_an_inapplicable_option_gives_the_same_step_as_an_allowed_cell(rule: Constraint) -> None:
    """Leaving the cell out loses nothing: an allowed cell runs that very step."""
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


def test_every_constraint_has_a_reason_and_is_proved_here() -> None:
    for rule in CONSTRAINTS:
        assert len(rule.reason.split()) > 5
        assert rule.kind == "inapplicable", "prove that the ordinary arm raises, in tests/harness"


def test_a_partial_cell_is_excluded_once_all_named_axes_are_there() -> None:
    assert exclusion({"wrapper": "none"}) is None
    assert exclusion({"wrapper": "none", "broadcast_buffers": True}) is None
    assert exclusion({"wrapper": "ddp", "broadcast_buffers": False}) is None
    assert exclusion({"wrapper": "none", "broadcast_buffers": False}) is CONSTRAINTS[0]


def test_a_constraint_may_name_the_subject() -> None:
    rule = Constraint({"subject": ("basic",), "wrapper": ("ddp",)}, "raises", "for this test only")

    assert exclusion({"subject": "basic", "wrapper": "ddp"}, (rule,)) is rule
    assert exclusion({"subject": "other", "wrapper": "ddp"}, (rule,)) is None
