from __future__ import annotations

import itertools

import pytest

from matrix.axes import AXES
from matrix.expectations import (
    EXPECTED_DIFFERENCES,
    RULES,
    Fact,
    expected_differences,
    expected_facts,
)
from matrix.programs import ACCUMULATIONS
from matrix.subjects import SUBJECTS
from matrix.values import Value

DDP: dict[str, Value] = {
    **{axis.name: axis.default for axis in AXES},
    "wrapper": "ddp",
    "buffers_follow_data": True,
}
TRAITS: dict[str, tuple[Value, ...]] = {
    "subject": tuple(subject.name for subject in SUBJECTS),
    "buffers_follow_data": (True, False),
}


def test_nothing_is_said_about_ranks_that_are_not_connected() -> None:
    assert expected_facts({**DDP, "wrapper": "none"}) == frozenset()


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_gradients_agree_after_one_reduced_backward_only(accumulation: str) -> None:
    gradients = {Fact.GRADIENTS_AGREE, Fact.GRADIENTS_ARE_MEAN}
    cell = {**DDP, "accumulation": accumulation}

    assert gradients <= expected_facts(cell)
    for backward in ("retained", "retained3", "autograd.grad"):
        assert not gradients & expected_facts({**cell, "backward": backward})


def test_gradients_differ_until_no_sync_ends() -> None:
    fact = Fact.GRADIENTS_DIFFER_BEFORE_SYNC

    assert fact in expected_facts({**DDP, "accumulation": "no_sync"})
    assert fact not in expected_facts({**DDP, "accumulation": "sequential"})


def test_parameters_agree_where_init_and_gradients_are_synced() -> None:
    start, end = Fact.PARAMETERS_AGREE_AT_START, Fact.PARAMETERS_AGREE_AT_END

    assert {start, end} <= expected_facts(DDP)
    retained = expected_facts({**DDP, "backward": "retained"})
    assert start in retained and Fact.PARAMETERS_DIFFER_AT_END in retained
    apart = expected_facts({**DDP, "init_sync": False})
    assert {Fact.PARAMETERS_DIFFER_AT_START, Fact.PARAMETERS_DIFFER_AT_END} <= apart
    assert not {start, end} & apart


def test_buffers_never_agree_at_the_end() -> None:
    assert Fact.BUFFERS_DIFFER_AT_END in expected_facts(DDP)
    assert Fact.BUFFERS_DIFFER_AT_END in expected_facts({**DDP, "broadcast_buffers": False})
    still = {**DDP, "buffers_follow_data": False}
    assert Fact.BUFFERS_DIFFER_AT_END not in expected_facts(still)


def test_buffer_broadcast_is_seen_when_a_later_forward_starts() -> None:
    agree, differ = Fact.BUFFERS_AGREE_AT_FORWARD, Fact.BUFFERS_DIFFER_AT_FORWARD

    assert not {agree, differ} & expected_facts(DDP)
    for later in ({"accumulation": "joint"}, {"steps": 3}):
        cell = {**DDP, **later}
        assert agree in expected_facts(cell)
        assert differ in expected_facts({**cell, "broadcast_buffers": False})
    after_no_sync = expected_facts({**DDP, "accumulation": "no_sync", "steps": 3})
    assert differ in after_no_sync and agree not in after_no_sync


def test_random_numbers_that_are_not_preserved_must_make_dropout_differ() -> None:
    def found(subject: str, enable: str) -> list[bool]:
        cell = {**DDP, "subject": subject, "enable": enable}
        return [item.must for item in expected_differences(cell)]

    assert found("dropout", "rng_not_preserved") == [True]
    assert found("python-random", "rng_not_preserved") == [False]
    assert found("dropout", "model_call") == found("basic", "rng_not_preserved") == []


@pytest.mark.parametrize("table", [RULES, EXPECTED_DIFFERENCES])
def test_every_line_gives_its_reason_and_names_real_values(table: tuple[object, ...]) -> None:
    values = {**TRAITS, **{axis.name: axis.values for axis in AXES}}
    for line in table:
        assert len(line.reason.split()) > 5  # type: ignore[attr-defined]
        for name, allowed in line.when.items():  # type: ignore[attr-defined]
            assert set(allowed) <= set(values[name])


def test_no_two_facts_contradict_each_other_in_a_cell() -> None:
    axes = [axis for axis in AXES if any(axis.name in rule.when for rule in RULES)]
    for follows in (True, False):
        for chosen in itertools.product(*(axis.values for axis in axes)):
            cell = {**DDP, **{a.name: v for a, v in zip(axes, chosen, strict=True)}}
            facts = {
                fact.value for fact in expected_facts({**cell, "buffers_follow_data": follows})
            }
            for fact in facts:
                assert "agree" not in fact or fact.replace("agree", "differ") not in facts
