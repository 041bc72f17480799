"""Copies of tensors, as they were at one instant."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from harness.localize.values import Held, hold, leaves_of, same, shared_copies


def held(tensor: Tensor) -> Held:
    leaf = hold(tensor)
    assert isinstance(leaf, Held)
    return leaf


def write_through_data(tensor: Tensor) -> None:
    tensor.data[0] = 3.0


def write_negative_zero(tensor: Tensor) -> None:
    tensor.data[0] = -0.0


def write_in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor[0] = 3.0


def put_another_shape(tensor: Tensor) -> None:
    tensor.data = torch.zeros(3)


@pytest.mark.parametrize(
    "write", [write_through_data, write_negative_zero, write_in_place, put_another_shape]
)
def test_no_write_reaches_a_copy(write: Callable[[Tensor], None]) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    with shared_copies():
        first, again = held(parameter), held(parameter)
        write(parameter)
        second = held(parameter)

    assert first.value is again.value and same(first, again)
    assert torch.equal(first.value, torch.zeros(2))
    assert torch.equal(second.value, parameter) and not same(first, second)


def test_copies_are_shared_while_that_is_asked_for_alone() -> None:
    tensor = torch.zeros(2)
    with shared_copies():
        inside = held(tensor)
        with shared_copies():
            assert held(tensor).value is not inside.value
        assert held(tensor).value is inside.value
    assert held(tensor).value is not inside.value


def test_a_tensor_lives_no_longer_for_its_copy() -> None:
    with shared_copies():
        tensor = torch.zeros(2)
        leaf = held(tensor)
        del tensor
        gc.collect()
        assert leaf.tensor() is None


def test_a_logger_is_not_walked() -> None:
    logger = logging.getLogger(__name__)
    logger.isEnabledFor(logging.DEBUG)  # which it remembers

    assert leaves_of({"logger": logger, "level": 3}, "x") == {"len(x)": 2, "x['level']": 3}
