"""A case: one subject and one value for each axis, with an id that can be read and typed.

The id is the subject's name and then, in canonical order, each axis that is not at its default:
``basic-down,wrapper=ddp,accumulation=joint``. No shell needs quotes for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from matrix.axes import AXES, Axis, axis_named
from matrix.subjects import SUBJECTS, Subject, subject_named
from matrix.values import Value, value_text


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    subject: Subject
    """What is tried."""
    values: tuple[Value, ...]
    """One value for each of ``axes``, in the same order."""
    axes: tuple[Axis, ...] = field(default=AXES, repr=False)
    """The axes, in canonical order."""

    def __post_init__(self) -> None:
        """Refuse a value that its axis does not have."""
        if len(self.values) != len(self.axes):
            raise ValueError(
                f"a case needs one value for each of the {len(self.axes)} axes, "
                f"got {len(self.values)}: {self.values!r}"
            )
        for axis, value in zip(self.axes, self.values, strict=True):
            axis.parse(value_text(value))

    @classmethod
    def of(
        cls,
        subject: Subject,
        values: Mapping[str, Value] | None = None,
        axes: tuple[Axis, ...] = AXES,
    ) -> Case:
        """Make a case from the axes that differ from their default.

        Args:
            subject: What is tried.
            values: Axis name -> value, for any of ``axes``.
            axes: The axes, in canonical order.

        Returns:
            The case, with the other axes at their default.

        Raises:
            ValueError: If there is no such axis or value.
        """
        given = dict(values or {})
        for name in given:
            axis_named(name, axes)
        return cls(subject, tuple(given.get(axis.name, axis.default) for axis in axes), axes)

    @property
    def assignment(self) -> dict[str, Value]:
        """Axis name -> value, for every axis."""
        return {axis.name: value for axis, value in zip(self.axes, self.values, strict=True)}

    @property
    def cell(self) -> dict[str, Value]:
        """The assignment and the subject's traits, as constraints and expectations read them."""
        return {
            "subject": self.subject.name,
            "batch_norm": self.subject.batch_norm,
            "buffers_follow_data": self.subject.buffers_follow_data,
            **self.assignment,
        }

    @cached_property
    def id(self) -> str:
        """The readable id; see the module's docstring."""
        parts = [self.subject.name]
        for axis, value in zip(self.axes, self.values, strict=True):
            if value_text(value) != value_text(axis.default):
                parts.append(f"{axis.name}={value_text(value)}")
        return ",".join(parts)


def parse_case(
    case_id: str, subjects: tuple[Subject, ...] = SUBJECTS, axes: tuple[Axis, ...] = AXES
) -> Case:
    """Return the case with an id.

    Args:
        case_id: As printed by ``Case.id``; axes may stand in any order.
        subjects: Where the subject is looked up.
        axes: The axes, in canonical order.

    Returns:
        The case.

    Raises:
        ValueError: If the subject, an axis or a value does not exist, or an axis is named twice.
    """
    name, *assignments = case_id.split(",")
    values: dict[str, Value] = {}
    for text in assignments:
        axis_name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(
                f"{text!r} in case id {case_id!r} is not of the form axis=value; an id is a "
                "subject and its axes, as in basic,wrapper=ddp,steps=3"
            )
        if axis_name in values:
            raise ValueError(f"case id {case_id!r} names axis {axis_name!r} twice")
        values[axis_name] = axis_named(axis_name, axes).parse(value)
    return Case.of(subject_named(name, subjects), values, axes)
