"""Compares what two arms saw on the same rank.

Equal traces are the rule, so they are found out by a plain bitwise pass. Only a trace that differs
is handed to DeepDiff, which walks both and says where and how.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from harness.findings import Scalar
from harness.trace import Observations

if TYPE_CHECKING:
    from deepdiff.model import DiffLevel

_PLAIN = (bool, int, str, type(None))
_MOST_JOINED = 1 << 12
"""Elements of a tensor up to which it is compared together with others."""

_ONLY_CHANGES = frozenset({"attributes", "rebound"})
"""Groups that name what has changed since the arm began, and nothing else."""

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """How two traces differ in one observation at one point."""

    point: str
    """Where in the program."""
    group: str
    """Which kind of observation."""
    name: str
    """Which one; empty where the whole group or point is missing."""
    expected: Scalar
    """Value in the first trace, at ``index``; ``missing`` or ``unchanged`` where it has none."""
    got: Scalar
    """Value in the second trace, in the same way."""
    index: tuple[int, ...] | None = None
    """First index, in row-major order, where two tensors differ."""
    max_abs: float | None = None
    """Largest absolute difference; None where values are not finite numbers of one shape."""

    @property
    def path(self) -> str:
        """The observation and the index, as in a finding."""
        where = "" if not self.index else str(list(self.index))
        return f"{self.group}/{self.name}{where}"


def bitwise_equal(first: Tensor, second: Tensor) -> bool:
    """Tell whether two tensors have the same dtype, shape and bits.

    Unlike ``torch.equal`` this tells 0.0 from -0.0 and finds a NaN equal to itself.
    """
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(_bits(first), _bits(second))


def equal(expected: Mapping[str, Observations], got: Mapping[str, Observations]) -> bool:
    """Tell whether two traces saw the same, bit by bit."""
    tensors: list[tuple[Tensor, Tensor]] = []
    return _same(expected, got, tensors) and all(starmap(bitwise_equal, _joined(tensors)))


def differences(
    expected: Mapping[str, Observations], got: Mapping[str, Observations]
) -> list[Difference]:
    """Describe how two traces differ.

    Args:
        expected: Points of the first trace.
        got: Points of the second one.

    Returns:
        Every observation that differs, in program order; empty where the traces are bitwise equal.
    """
    if equal(expected, got):
        return []
    from deepdiff import DeepDiff

    # Two groups that share few names are compared name by name all the same.
    tree = DeepDiff(
        expected,
        got,
        custom_operators=[_tensor_operator()],
        threshold_to_diff_deeper=0,
        view="tree",
    )
    found = [_difference(level) for levels in tree.values() for level in levels]
    order = {point: position for position, point in enumerate([*expected, *got])}
    found.sort(key=lambda difference: order.get(difference.point, len(order)))
    return found


def _same(first: Any, second: Any, tensors: list[tuple[Tensor, Tensor]]) -> bool:
    """Tell whether two observations are the same but for pairs of tensors, which it collects."""
    kind = type(first)
    if kind is dict and type(second) is dict:
        return first.keys() == second.keys() and all(
            _same(value, second[key], tensors) for key, value in first.items()
        )
    if kind is type(second) and kind in _PLAIN:
        return bool(first == second)
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        tensors.append((first, second))
        return True
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return _same(dict(first), dict(second), tensors)
    return kind is type(second) and bool(first == second)


def _joined(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the pairs, small ones of one dtype as one: each comparison costs a few calls."""
    small: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for first, second in pairs:
        if first.dtype == second.dtype and first.shape == second.shape and _is_small(first, second):
            firsts, seconds = small.setdefault(first.dtype, ([], []))
            firsts.append(first)
            seconds.append(second)
        else:
            yield first, second
    with torch.no_grad():
        for firsts, seconds in small.values():
            first, second = map(_flatten_dense_tensors, (firsts, seconds))
            yield first, second


def _is_small(*tensors: Tensor) -> bool:
    return all(
        type(tensor) is Tensor
        and tensor.numel() <= _MOST_JOINED
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        for tensor in tensors
    )


def _bits(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGER_OF_SIZE[tensor.element_size()])


def _tensor_operator() -> Any:
    from deepdiff.operator import BaseOperator

    class TensorOperator(BaseOperator):
        """Reports a pair of tensors as one difference, and only when a bit differs."""

        def give_up_diffing(self, level: DiffLevel, diff_instance: Any) -> bool:
            if not bitwise_equal(level.t1, level.t2):
                diff_instance.custom_report_result("tensors_differ", level)
            return True

    return TensorOperator(types=[Tensor])


def _difference(level: DiffLevel) -> Difference:
    point, group, name = [*map(str, level.path(output_format="list")), "", ""][:3]
    return describe_difference(level.t1, level.t2, point=point, group=group, name=name)


def describe_difference(
    expected: Any, got: Any, *, point: str = "", group: str = "", name: str = ""
) -> Difference:
    """Describe how two values that are known to differ do so.

    Args:
        expected: A tensor, number, text or None.
        got: What was seen in its place.
        point: Where in the program.
        group: Which kind of observation.
        name: Which one.

    Returns:
        The difference; with an index and a size for two tensors of one shape and dtype.
    """
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        if expected.shape == got.shape and expected.dtype == got.dtype:
            return _tensor_difference(point, group, name, expected, got)
    return Difference(point, group, name, _describe(expected, group), _describe(got, group))


def _tensor_difference(
    point: str, group: str, name: str, expected: Tensor, got: Tensor
) -> Difference:
    unequal = (_bits(expected) != _bits(got)).reshape(*expected.shape, -1).any(-1)
    index = tuple(unequal.nonzero()[0].tolist())
    wide = torch.complex128 if expected.is_complex() else torch.float64
    gap = (expected.to(wide) - got.to(wide)).abs().max().item()
    return Difference(
        point=point,
        group=group,
        name=name,
        expected=_describe(expected[index]),
        got=_describe(got[index]),
        index=index,
        max_abs=gap if math.isfinite(gap) else None,
    )


def _describe(value: Any, group: str = "") -> Scalar:
    if isinstance(value, Tensor):
        if value.ndim == 0:
            number = value.item()
            return number if math.isfinite(abs(number)) and not value.is_complex() else str(number)
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if "NotPresent" in type(value).__name__:
        return "unchanged" if group in _ONLY_CHANGES else "missing"
    return type(value).__name__
