"""Row-wise arithmetic, the same for bare features and for whole geometries."""

from __future__ import annotations

import operator
from collections.abc import Callable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from torch import Tensor

from wcn_ckpt.geometry.offsets import same_offsets

if TYPE_CHECKING:
    from typing_extensions import Self

BinaryOp = Callable[[Any, Any], Any]


class RowArithmetic:
    """Gives `+ - * / // % **` to a class that can combine its rows with another operand."""

    # A numpy scalar on the left leaves the operation to us.
    __array_ufunc__ = None

    def _combine(self, other: object, op: BinaryOp) -> Self:
        """Returns `op(own rows, other's rows or number)` as a new object."""
        raise NotImplementedError

    def __add__(self, other: object) -> Self:
        """Row-wise sum."""
        return self._combine(other, operator.add)

    def __radd__(self, other: object) -> Self:
        """Row-wise sum."""
        return self._combine(other, lambda mine, theirs: theirs + mine)

    def __sub__(self, other: object) -> Self:
        """Row-wise difference."""
        return self._combine(other, operator.sub)

    def __rsub__(self, other: object) -> Self:
        """Row-wise difference."""
        return self._combine(other, lambda mine, theirs: theirs - mine)

    def __mul__(self, other: object) -> Self:
        """Row-wise product."""
        return self._combine(other, operator.mul)

    def __rmul__(self, other: object) -> Self:
        """Row-wise product."""
        return self._combine(other, lambda mine, theirs: theirs * mine)

    def __truediv__(self, other: object) -> Self:
        """Row-wise quotient."""
        return self._combine(other, operator.truediv)

    def __rtruediv__(self, other: object) -> Self:
        """Row-wise quotient."""
        return self._combine(other, lambda mine, theirs: theirs / mine)

    def __floordiv__(self, other: object) -> Self:
        """Row-wise quotient, rounded down."""
        return self._combine(other, operator.floordiv)

    def __mod__(self, other: object) -> Self:
        """Row-wise remainder."""
        return self._combine(other, operator.mod)

    def __pow__(self, other: object) -> Self:
        """Row-wise power."""
        return self._combine(other, operator.pow)


def check_same_rows(
    left_offsets: Tensor, left: Tensor, right_offsets: Tensor, right: Tensor
) -> None:
    """Check that two sets of feature rows can be combined row by row.

    Raises:
        ValueError: offsets or shapes differ.
    """
    if not same_offsets(left_offsets, right_offsets):
        raise ValueError(
            f"cannot combine clouds with offsets {left_offsets.tolist()} and "
            f"{right_offsets.tolist()}; both sides need the same rows"
        )
    if left.shape != right.shape:
        raise ValueError(
            f"cannot combine features of shape {tuple(left.shape)} and {tuple(right.shape)}"
        )


def scalar_operand(other: object) -> float | Tensor:
    """Return a number or one-element tensor as something that broadcasts over rows.

    Raises:
        TypeError: `other` is neither.
    """
    if isinstance(other, Real):
        return int(other) if isinstance(other, Integral) else float(other)
    if isinstance(other, Tensor) and other.numel() == 1:
        return other.reshape(())
    what = f"a tensor of shape {tuple(other.shape)}" if isinstance(other, Tensor) else repr(other)
    raise TypeError(
        f"cannot combine features with {what}; use a geometry with the same rows, a number or a "
        "one-element tensor, or replace_features(...) with a tensor of your own"
    )
