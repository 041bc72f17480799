from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.axes import AXES, Axis
from matrix.case import Case, parse_case
from matrix.subjects import SUBJECTS
from matrix.values import Value

SUBJECT = SUBJECTS[0]
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)

cases = st.builds(
    Case,
    st.sampled_from(SUBJECTS),
    st.tuples(*(st.sampled_from(axis.values) for axis in AXES)),
)


@SETTINGS
@given(cases)
def test_an_id_leads_back_to_its_case(case: Case) -> None:
    assert parse_case(case.id) == case


@SETTINGS
@given(cases, cases)
def test_two_cases_have_two_ids(first: Case, second: Case) -> None:
    assert (first == second) == (first.id == second.id)


@SETTINGS
@given(cases)
def test_no_shell_needs_quotes_for_an_id(case: Case) -> None:
    assert shlex.split(case.id) == [case.id]
    assert re.fullmatch(r"[A-Za-z0-9_.,=+-]+", case.id)


@SETTINGS
@given(cases, st.integers(0, len(AXES)))
def test_a_new_axis_with_a_default_leaves_old_ids_as_they_are(case: Case, place: int) -> None:
    new = Axis("new", (1, 2), default=1, doc="")
    axes = (*AXES[:place], new, *AXES[place:])
    grown = Case.of(case.subject, case.assignment, axes)

    assert grown.id == case.id
    assert parse_case(case.id, axes=axes) == grown


def test_an_id_names_only_what_is_not_at_its_default() -> None:
    assert Case.of(SUBJECT).id == "basic"
    values: dict[str, Value] = {"accumulation": "joint", "bn_momentum": None, "wrapper": "ddp"}
    assert Case.of(SUBJECT, values).id == "basic,bn_momentum=none,wrapper=ddp,accumulation=joint"


def test_axes_may_be_typed_in_any_order() -> None:
    assert parse_case("basic,wrapper=ddp,bn_momentum=1.0").id == "basic,bn_momentum=1.0,wrapper=ddp"


@pytest.mark.parametrize(
    ("case_id", "message"),
    [
        ("nothing", "no subject 'nothing'.*basic, basic-down, bottleneck"),
        ("basic,wrapper", "'wrapper' in case id .* not of the form axis=value"),
        ("basic,wrap=ddp", "no axis 'wrap'"),
        ("basic,wrapper=fsdp", "no value 'fsdp'; did you mean 'fsdp2'"),
        ("basic,wrapper=ddp,wrapper=none", "names axis 'wrapper' twice"),
    ],
)
def test_a_wrong_id_says_what_is_wrong(case_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_case(case_id)


def test_a_case_refuses_values_its_axes_do_not_have() -> None:
    with pytest.raises(ValueError, match="no value '7'"):
        Case.of(SUBJECT, {"bn_momentum": 7})
    with pytest.raises(ValueError, match=f"one value for each of the {len(AXES)} axes, got 1"):
        Case(SUBJECT, (0.1,))
