"""Which combinations of values are no case, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from matrix.axes import AXES, Axis
from matrix.subject import Narrowing, Subject
from matrix.values import Condition, Value, meets, value_text


@dataclass(frozen=True)
class Constraint:
    """An exclusion, with its reason."""

    when: Condition = field(hash=False)
    """The combinations that are left out. ``subject`` may be named like an axis."""
    kind: Literal["inapplicable", "raises", "elsewhere"]
    """``inapplicable``: the option does not exist there, so the case runs what another case runs.
    ``raises``: the ordinary arm itself raises there. ``elsewhere``: it is run on another device."""
    reason: str
    """Why, in one sentence."""

    @property
    def text(self) -> str:
        """The condition as a person types it: ``wrapper=none,broadcast_buffers=off``."""
        return ",".join(
            f"{name}={'|'.join(value_text(value) for value in values)}"
            for name, values in self.when.items()
        )


CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        when={"wrapper": ("none",), "broadcast_buffers": (False,)},
        kind="inapplicable",
        reason="buffer broadcast is an option of DDP; without DDP there is nothing to switch off",
    ),
    Constraint(
        when={"wrapper": ("none",), "init_sync": (False,)},
        kind="inapplicable",
        reason="sync at init is an option of DDP; without DDP there is nothing to switch off",
    ),
    Constraint(
        when={"device": ("cpu",), "autocast": ("fp16",)},
        kind="elsewhere",
        reason="torch's autocast dtype on CPU is bfloat16; float16 is CUDA's and is run there",
    ),
)
"""Every exclusion that does not come from a subject."""


def constraints_on(
    subjects: Iterable[Subject],
    axes: tuple[Axis, ...] = AXES,
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
) -> tuple[Constraint, ...]:
    """Return constraints together with what subjects themselves leave out.

    Args:
        subjects: The subjects.
        axes: The axes.
        constraints: The exclusions that hold for any subject.

    Returns:
        ``constraints``, then one exclusion for each axis that some of the subjects lack or narrow.
    """
    subjects = tuple(subjects)
    found = list(constraints)
    for axis in axes:
        without = tuple(s.name for s in subjects if axis.name not in s.options)
        if axis.option is not None and without:
            others = tuple(value for value in axis.values if value != axis.default)
            when = {"subject": without, axis.name: others}
            found.append(Constraint(when, "inapplicable", axis.option))
    named: dict[Narrowing, list[str]] = {}
    for subject in subjects:
        for narrowing in subject.narrowings:
            named.setdefault(narrowing, []).append(subject.name)
    for narrowing, names in named.items():
        for axis in axes:
            kept = narrowing.only.get(axis.name)
            if kept is not None and (out := [v for v in axis.values if v not in kept]):
                when = {"subject": tuple(names), axis.name: tuple(out)}
                found.append(Constraint(when, "inapplicable", narrowing.reason))
    return tuple(found)


def exclusion(
    cell: Mapping[str, Value], constraints: tuple[Constraint, ...] = CONSTRAINTS
) -> Constraint | None:
    """Return the first constraint that excludes a cell.

    Args:
        cell: Axis name -> value, and ``subject`` -> name. May be partial: a constraint applies
            once all the axes it names are there.
        constraints: The constraints to try.

    Returns:
        The constraint, or None where the cell is allowed.
    """
    return next((rule for rule in constraints if meets(cell, rule.when)), None)
