from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from harness.arms import arm_named
from harness.findings import CauseKind, Finding
from harness.ranks import RankPool
from harness.row import Row
from harness.runner import RunOptions, run_case
from harness.shrinking import away_from_default, failure_of, shrink_and_show, shrink_case
from matrix.axes import AXES
from matrix.case import Case, parse_case
from matrix.constraints import constraints_on, exclusion
from matrix.subjects import subject_named
from matrix.values import Value

FREE = [axis for axis in AXES if not axis.opt_in and axis.option is None]


@st.composite
def allowed_cases(draw: st.DrawFn) -> Case:
    subject = subject_named("readme")
    values: dict[str, Value] = {
        axis.name: draw(st.sampled_from([v for v in axis.values if v != "fp16"])) for axis in FREE
    }
    case = Case.of(subject, values)
    rules = constraints_on([subject])
    while (rule := exclusion(case.cell, rules)) is not None:
        values = {name: value for name, value in values.items() if name not in rule.when}
        case = Case.of(subject, values)
    return case


@settings(max_examples=60, deadline=None, derandomize=True)
@given(allowed_cases(), st.data())
def test_a_shrunk_case_fails_and_none_of_its_axes_can_be_spared(
    case: Case, data: st.DataObject
) -> None:
    """Fails where some axes have the values they have in the case, or where others have."""
    away = away_from_default(case)
    one, other = (data.draw(st.sets(st.sampled_from(away or ["steps"]), max_size=3)) for _ in "ab")

    def fails(candidate: Case) -> bool:
        return any(
            all(candidate.assignment[name] == case.assignment[name] for name in names)
            for names in (one, other)
        )

    asked: list[str] = []

    def ending(candidate: Case) -> tuple[bool, str]:
        asked.append(candidate.id)
        return fails(candidate), ""

    shrunk = shrink_case(case, ending)

    rules = constraints_on([case.subject])
    assert fails(shrunk.case)
    assert [needed.axis for needed in shrunk.needed] == away_from_default(shrunk.case)
    assert shrunk.runs == len(asked) == len(set(asked))
    for name in away_from_default(shrunk.case):
        kept = {n: shrunk.case.assignment[n] for n in away_from_default(shrunk.case) if n != name}
        smaller = Case.of(case.subject, kept)
        assert exclusion(smaller.cell, rules) is not None or not fails(smaller)
    assert all(exclusion(parse_case(case_id).cell, rules) is None for case_id in asked)


def test_axes_that_need_each_other_go_together() -> None:
    case = parse_case("readme,wrapper=ddp,broadcast_buffers=off,init_sync=off,steps=3")

    shrunk = shrink_case(case, lambda c: (c.assignment["steps"] == 3, "equal"))

    assert shrunk.case.id == "readme,steps=3"
    assert [(needed.text, needed.without) for needed in shrunk.needed] == [("steps=3", "equal")]


def test_an_axis_that_another_one_needs_stays() -> None:
    case = parse_case("readme,wrapper=ddp,broadcast_buffers=off,steps=3")

    shrunk = shrink_case(case, lambda c: (not c.assignment["broadcast_buffers"], "equal"))

    assert shrunk.case.id == "readme,wrapper=ddp,broadcast_buffers=off"


def test_a_failure_that_needs_no_axis_shrinks_to_the_subject() -> None:
    asked: list[str] = []

    def ending(candidate: Case) -> tuple[bool, str]:
        asked.append(candidate.id)
        return True, "differs"

    assert shrink_case(parse_case("readme,steps=3,autocast=bf16"), ending).case.id == "readme"
    assert asked == ["readme"]


def finding(path: str, kind: CauseKind = CauseKind.UNKNOWN) -> Finding:
    return Finding(
        rank=0, point="end", path=path, expected=1, got=2, cause="c", remedy="r", kind=kind
    )


def row(case: Case, outcome: str, *findings: Finding) -> Row:
    return Row(
        case=case.id,
        subject=case.subject.name,
        axes=case.assignment,
        seed=0,
        arm="checkpointed",
        ranks=2,
        outcome=outcome,  # type: ignore[arg-type]
        findings=findings,
    )


def test_two_failures_are_the_same_by_outcome_kind_and_kind_of_observation() -> None:
    case = parse_case("readme")

    assert failure_of(row(case, "equal")) is None
    same = [row(case, "differs", finding(f"buffers/norm.{name}")) for name in ("a", "b[3]")]
    assert failure_of(same[0]) == failure_of(same[1])
    others = [
        row(case, "error", finding("buffers/a")),
        row(case, "differs", finding("outputs/a")),
        row(case, "differs", finding("buffers/a", CauseKind.ORDER_DRIFT)),
        row(case, "hung"),
    ]
    assert failure_of(same[0]) not in [failure_of(other) for other in others]


def shown(case_id: str, run: object) -> tuple[Row, str]:
    console = Console(file=io.StringIO(), width=400, highlight=False, markup=False, soft_wrap=True)
    last = shrink_and_show(parse_case(case_id), run, console)  # type: ignore[arg-type]
    return last, console.file.getvalue()  # type: ignore[attr-defined]


def test_another_failure_on_the_way_is_told_and_not_followed() -> None:
    def run(case: Case) -> Row:
        values = case.assignment
        if values["steps"] == 3:
            return row(case, "differs", finding("buffers/a"))
        return row(case, "error", finding("exception"))

    last, text = shown("readme,steps=3,autocast=bf16", run)

    assert last.case == "readme,steps=3"
    assert "smallest: 1 of 2 axis values, after 3 runs" in text
    assert "steps=3 is needed; without it: error otherwise" in text


def test_a_case_that_passes_is_not_shrunk() -> None:
    last, text = shown("readme,steps=3", lambda case: row(case, "equal"))

    assert last.passed
    assert "it does not fail here, so there is nothing to shrink" in text


@pytest.mark.parametrize("wrapper", ["none", "ddp"])
def test_a_real_failure_is_shrunk_to_the_axis_it_needs(rank_pool: RankPool, wrapper: str) -> None:
    """Snapshot and copy fails where a plain graph still waits for its backward."""
    options = RunOptions(arm=arm_named("snapshot_copy"))
    case = "readme,bn_momentum=1.0,accumulation=plain_then_checkpointed,steps=3"
    if wrapper == "ddp":
        case = case.replace("readme,", "readme,wrapper=ddp,broadcast_buffers=off,")

    last, text = shown(case, lambda candidate: run_case(candidate, rank_pool, options))

    assert last.case == "readme,accumulation=plain_then_checkpointed"
    assert last.outcome == "error"
    assert "accumulation=plain_then_checkpointed is needed; without it: equal" in text
    assert "replay: ckpt-lab replay readme,accumulation=plain_then_checkpointed" in text
    assert "shrink:" not in text
