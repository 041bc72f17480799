from __future__ import annotations

import pytest

from matrix.axes import AXES
from matrix.expectations import RULES, Fact, expected_facts
from matrix.programs import ACCUMULATIONS
from matrix.values import Value

DDP: dict[str, Value] = {**{axis.name: axis.default for axis in AXES}, "wrapper": "ddp"}


def test_nothing_is_said_about_ranks_that_are_not_connected() -> None:
    assert expected_facts({**DDP, "wrapper": "none"}) == frozenset()


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_gradients_agree_after_one_reduced_backward_only(accumulation: str) -> None:
    gradients = {Fact.GRADIENTS_AGREE, Fact.GRADIENTS_ARE_MEAN}
    cell = {**DDP, "accumulation": accumulation}

    assert gradients <= expected_facts(cell)
    assert not gradients & expected_facts({**cell, "backward": "retained"})
    assert not gradients & expected_facts({**cell, "backward": "autograd.grad"})


def test_buffers_never_agree_at_the_end_of_a_step() -> None:
    assert Fact.BUFFERS_DIFFER_AT_END in expected_facts(DDP)
    assert Fact.BUFFERS_DIFFER_AT_END in expected_facts({**DDP, "broadcast_buffers": False})


def test_buffer_broadcast_is_seen_when_the_second_forward_starts() -> None:
    joint = {**DDP, "accumulation": "joint"}

    assert Fact.BUFFERS_AGREE_AT_FORWARD not in expected_facts(DDP)
    assert Fact.BUFFERS_AGREE_AT_FORWARD in expected_facts(joint)
    assert Fact.BUFFERS_DIFFER_AT_FORWARD in expected_facts({**joint, "broadcast_buffers": False})


def test_every_rule_gives_its_reason_and_names_real_values() -> None:
    values = {axis.name: axis.values for axis in AXES}
    for rule in RULES:
        assert len(rule.reason.split()) > 5
        for name, allowed in rule.when.items():
            assert set(allowed) <= set(values[name])
