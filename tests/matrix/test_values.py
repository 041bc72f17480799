from __future__ import annotations

import pytest

from matrix.values import meets, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "none"), (True, "on"), (False, "off"), (0.1, "0.1"), (1, "1"), ("bf16", "bf16")],
)
def test_values_have_the_text_a_person_types(value: object, text: str) -> None:
    assert value_text(value) == text  # type: ignore[arg-type]  # parametrized over all types


@pytest.mark.parametrize("value", ["a b", "a,b", "a=b", "$HOME", "", "a|b", "a;b", "*"])
def test_a_value_that_a_shell_would_read_otherwise_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="cannot stand in a case id"):
        value_text(value)


def test_a_condition_is_met_when_every_axis_has_one_of_its_values() -> None:
    condition = {"wrapper": ("ddp",), "backward": ("plain", "retained")}

    assert meets({"wrapper": "ddp", "backward": "retained", "other": 1}, condition)
    assert not meets({"wrapper": "ddp", "backward": "autograd.grad"}, condition)


def test_a_condition_about_an_absent_axis_is_not_met() -> None:
    assert not meets({"wrapper": "ddp"}, {"wrapper": ("ddp",), "backward": ("plain",)})
