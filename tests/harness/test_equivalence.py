from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.equivalence import bitwise_equal, differences, equal
from harness.trace import Observations

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def points(**buffers: Any) -> dict[str, Observations]:
    return {"forward[0]": {"buffers": buffers}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_bits_are_compared_not_values(dtype: torch.dtype) -> None:
    zero = torch.tensor([0.0, 1.0], dtype=dtype)
    minus_zero = torch.tensor([-0.0, 1.0], dtype=dtype)
    nan = torch.tensor([math.nan], dtype=dtype)

    assert torch.equal(zero, minus_zero)
    assert not bitwise_equal(zero, minus_zero)
    assert bitwise_equal(nan, nan.clone())


def test_shape_and_dtype_are_part_of_a_value() -> None:
    assert not bitwise_equal(torch.zeros(2), torch.zeros(2, 1))
    assert not bitwise_equal(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert bitwise_equal(torch.zeros(2, 3).t(), torch.zeros(3, 2))
    assert bitwise_equal(torch.tensor([True]), torch.tensor([True]))


@SETTINGS
@given(st.integers(0, 23), st.floats(1e-3, 1e3))
def test_one_changed_element_is_found_where_it_is(position: int, gap: float) -> None:
    expected = torch.arange(24, dtype=torch.float64).reshape(2, 3, 4)
    got = expected.clone()
    got.view(-1)[position] += gap

    (difference,) = differences(points(x=expected), points(x=got))

    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(position), got.shape))
    assert difference.index == index
    assert difference.path == f"buffers/x{list(index)}"
    assert (difference.expected, difference.got) == (expected[index].item(), got[index].item())
    assert difference.max_abs == (got - expected).abs().max().item()


def test_equal_traces_have_no_difference() -> None:
    first = points(x=torch.ones(2), n=None, text="a")
    second = points(x=torch.ones(2), n=None, text="a")

    assert equal(first, second)
    assert differences(first, second) == []


@pytest.mark.parametrize(
    ("expected", "got", "shown"),
    [
        (None, torch.ones(3), (None, "float32 tensor of shape (3,)")),
        (torch.ones(3), None, ("float32 tensor of shape (3,)", None)),
        (
            torch.ones(2),
            torch.ones(2, dtype=torch.bfloat16),
            ("float32 tensor of shape (2,)", "bfloat16 tensor of shape (2,)"),
        ),
        (
            torch.ones(1),
            torch.ones(2),
            ("float32 tensor of shape (1,)", "float32 tensor of shape (2,)"),
        ),
        ("abc", "abd", ("abc", "abd")),
        (torch.tensor(1.0), torch.tensor(math.nan), (1.0, "nan")),
    ],
)
def test_what_cannot_be_subtracted_is_described(
    expected: Any, got: Any, shown: tuple[Any, Any]
) -> None:
    (difference,) = differences(points(x=expected), points(x=got))

    assert (difference.expected, difference.got) == shown
    assert difference.max_abs is None


def test_missing_and_additional_observations_are_found() -> None:
    expected = points(x=torch.ones(1), y=torch.ones(1))
    got = points(y=torch.ones(1), z=torch.ones(1))

    shown = {d.path: (d.expected, d.got) for d in differences(expected, got)}

    tensor = "float32 tensor of shape (1,)"
    assert shown == {"buffers/x": (tensor, "missing"), "buffers/z": ("missing", tensor)}


@pytest.mark.parametrize("group", ["attributes", "rebound"])
def test_a_change_that_one_trace_does_not_have_is_told_by_name(group: str) -> None:
    changed = {f"x{i}": i for i in range(10)}
    expected: dict[str, Observations] = {"forward[0]": {group: {}}}
    got: dict[str, Observations] = {"forward[0]": {group: changed}}

    shown = {d.name: (d.expected, d.got) for d in differences(expected, got)}

    assert shown == {name: ("unchanged", value) for name, value in changed.items()}


def test_a_missing_point_is_found() -> None:
    (difference,) = differences(points(x=torch.ones(1)), {})

    assert difference.point == "forward[0]"
    assert difference.got == "missing"


def test_differences_come_in_program_order() -> None:
    def trace(value: float) -> dict[str, Observations]:
        return {
            point: {"buffers": {"x": torch.tensor(value)}}
            for point in ("forward[0]", "start of forward[1]", "forward[1]", "backward[0]")
        }

    assert [d.point for d in differences(trace(0.0), trace(1.0))] == list(trace(0.0))
