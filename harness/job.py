"""What a rank is sent: one case, resolved into plain data and importable names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from matrix.case import Case
from matrix.expectations import (
    RANKS_DIFFER,
    ExpectedDifference,
    Fact,
    expected_differences,
    expected_facts,
)
from matrix.programs import Program, build_program
from matrix.values import Value


@dataclass(frozen=True, kw_only=True)
class Job:
    """One case as a rank runs it."""

    case: str
    """Id of the case."""
    seed: int
    """Seed of the run; inputs are drawn from it."""
    case_seed: int
    """Seed of weights, losses and random draws of this case."""
    factory: str
    """Importable name of the subject's factory."""
    arguments: Mapping[str, Any]
    """Its keyword arguments."""
    inputs: str
    """Importable name of the input function."""
    input_arguments: Mapping[str, Any]
    """Its further keyword arguments."""
    configure: tuple[tuple[str, Value], ...]
    """Importable names of functions that configure the new subject, each with its value."""
    program: Program
    """The training step."""
    facts: frozenset[Fact]
    """What must hold across ranks."""
    expected: tuple[ExpectedDifference, ...]
    """Differences between the arms that are no fault."""
    arm: str
    """Importable name of the arm that is judged against the ordinary one."""
    arm_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of its install function."""
    loss: Any = None
    """A ``function(output)`` that returns the loss, or its importable name; None for the default
    one."""
    localized: bool = True
    """Whether a difference is looked into: which submodule, which pass, and why."""


def make_job(
    case: Case, *, arm: str, seed: int, arm_arguments: Mapping[str, Any] | None = None
) -> Job:
    """Resolve a case.

    Args:
        case: The case.
        arm: Importable name of the arm that is judged.
        seed: Seed of the run. The case's own seed follows from it and the case id.
        arm_arguments: Keyword arguments of its install function.

    Returns:
        What the ranks are sent.
    """
    subject, program = case.subject, build_program(case.assignment)
    arguments, input_arguments = dict(subject.arguments), dict(subject.input_arguments)
    for axis, value in zip(case.axes, case.values, strict=True):
        arguments.update(axis.construct.get(value, {}))
        input_arguments.update(axis.inputs.get(value, {}))
    digest = hashlib.sha256(f"{seed}:{case.id}".encode()).digest()
    facts = expected_facts(case.cell)
    return Job(
        case=case.id,
        seed=seed,
        case_seed=int.from_bytes(digest[:4], "big"),
        factory=subject.factory,
        arguments=arguments,
        inputs=subject.inputs,
        input_arguments=input_arguments,
        configure=tuple(
            (axis.configure, value)
            for axis, value in zip(case.axes, case.values, strict=True)
            if axis.configure is not None
        ),
        program=replace(program, find_unused=program.find_unused or subject.unused_parameters),
        facts=facts if subject.ranks_differ else facts - RANKS_DIFFER,
        expected=expected_differences(case.cell),
        arm=arm,
        arm_arguments=dict(arm_arguments or {}),
        loss=subject.loss,
    )
