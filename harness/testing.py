"""The lab inside somebody's tests: which cases a module has, and whether they end as expected."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from harness.arms import Arm, arm_named
from harness.ranks.launch import Ranks
from harness.registered import any_subject_named
from harness.report.terminal import finding_text
from harness.request import parse_axes
from harness.row import Row
from harness.runner import RunOptions, run_case
from harness.verification.axes import VERIFY_AXES, parse
from harness.verification.hidden_writes import with_hidden_writes
from harness.verification.inspected import INSPECT, Problem, Question
from harness.verification.naming import importable_name
from harness.verification.plan import make_plan
from harness.verification.request import VerifyRequest
from matrix.case import Case
from matrix.suites import select, suite_named
from matrix.values import value_text

SUITES = ("smoke", "pr")
"""Suites for any module; the others are about the lab's own subjects and axes."""

_MOST_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class LabCase:
    """One case of a module in a test."""

    case: Case
    """The case."""
    arm: Arm
    """What is judged against ordinary training."""
    seed: int
    """Seed of the run."""
    command: str = ""
    """The command that runs it again, where that is not ``ckpt-lab replay``."""
    watched: bool = False
    """Whether what its replays write besides what is compared is looked for too."""

    @property
    def id(self) -> str:
        """The id of the case."""
        return self.case.id


def cases_of(
    ranks: Ranks,
    factory: Any,
    inputs: Any,
    suite: str = "smoke",
    *,
    boundaries: Sequence[str] = (),
    axes: Sequence[str] = (),
    loss: Any = None,
    preserve: bool = False,
    seed: int = 0,
) -> list[LabCase]:
    """Choose the cases of a module.

    Args:
        ranks: Where it is looked at.
        factory: A function or class at the top of a module, or its name (``"package.module:name"``
            or ``"file.py:name"``); it returns a new module and gets ``seed`` if it takes one.
        inputs: The same for what the module's forward is given: a tuple of arguments, a dict of
            keywords, or one argument.
        suite: How much of the matrix is run, ``smoke`` or ``pr``.
        boundaries: Classes, or patterns of paths, that become boundaries. By default those that
            the module has, then its own gradient checkpointing, then repeated blocks.
        axes: ``"name=v1,v2"`` narrows an axis to some values.
        loss: ``function(output)`` that returns a scalar, or its name.
        preserve: Judge the module's own checkpointing after ``preserve_replay_state``.
        seed: Seed of weights and data.

    Returns:
        The cases, in the order in which they run.

    Raises:
        TypeError: If something cannot be imported by the ranks.
        ValueError: If the module cannot be judged, or there is no such suite or axis.
    """
    request = VerifyRequest(
        target=_name_of(factory, "factory"),
        inputs=_name_of(inputs, "inputs"),
        boundaries=tuple(boundaries),
        axes=tuple(axes),
        loss=None if loss is None else _name_of(loss, "loss"),
        preserve=preserve,
        seed=seed,
    )
    if suite_named(suite).name not in SUITES:
        raise ValueError(
            f"suite {suite!r} is about the lab's own subjects; suites for a module: "
            f"{', '.join(SUITES)}"
        )
    only = parse(request.axes)
    question = Question(
        target=request.target,
        inputs_target=request.inputs,
        boundaries=request.boundaries,
        loss=request.loss,
    )
    results = ranks.run(INSPECT, question, request.case_timeout)
    failed = next((result for result in results if result.status != "returned"), None)
    if failed is not None:
        raise ValueError(f"looking at {request.target} {failed.status}: {failed.error}")
    found = results[0].value
    plan = found if isinstance(found, Problem) else make_plan(request, found, 2)
    if isinstance(plan, Problem):
        raise ValueError(f"{request.target} cannot be judged: {plan.text}")
    selection = select(
        suite_named(suite),
        subjects=[plan.subject],
        axes=VERIFY_AXES,
        only={"device": (request.device,), **only},
        seed=seed,
    )
    return [
        LabCase(
            case=case,
            arm=plan.arm,
            seed=seed,
            command=_command(request, case),
            watched=number == 0,
        )
        for number, case in enumerate(selection.cases)
    ]


def cases_of_subject(
    subject: str, suite: str = "smoke", *, axes: Sequence[str] = (), seed: int = 0
) -> list[LabCase]:
    """Choose the cases of a subject of the lab or of one that a package registers.

    Args:
        subject: Its name.
        suite: How much of the matrix is run.
        axes: ``"name=v1,v2"`` narrows an axis to some values.
        seed: Seed of weights and data.

    Raises:
        ValueError: If there is no such subject, suite or axis.
    """
    selection = select(
        suite_named(suite),
        subjects=[any_subject_named(subject)],
        only={"device": ("cpu",), **parse_axes(tuple(axes))},
        seed=seed,
    )
    return [
        LabCase(case=case, arm=arm_named("checkpointed"), seed=seed) for case in selection.cases
    ]


class CkptLab:
    """What the fixture ``ckpt_lab`` gives.

    Args:
        ranks: The ranks that cases run on; they are kept from test to test.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def assert_equivalent(
        self, factory: Any, inputs: Any, suite: str = "smoke", **options: Any
    ) -> None:
        """Fail the test unless checkpointing changes nothing that a module computes.

        Args:
            factory: See :func:`cases_of`, as for all that follows.
            inputs: What makes the inputs.
            suite: How much of the matrix is run.
            **options: ``boundaries``, ``axes``, ``loss``, ``preserve``, ``seed``.
        """
        __tracebackhide__ = True
        self._assert_all(cases_of(self._ranks, factory, inputs, suite, **options))

    def assert_subject(self, subject: str, suite: str = "smoke", **options: Any) -> None:
        """Fail the test unless checkpointing changes nothing that a registered subject computes.

        Args:
            subject: Name of a subject of the lab or of an installed package.
            suite: How much of the matrix is run.
            **options: ``axes``, ``seed``.
        """
        __tracebackhide__ = True
        self._assert_all(cases_of_subject(subject, suite, **options))

    def check(self, case: LabCase) -> Row:
        """Run one case and fail the test where it does not end as expected, or is not all checked.

        Args:
            case: The case.

        Returns:
            Its row.
        """
        row = self._run(case)
        if not _is_proven(row):
            pytest.fail(row_text(row), pytrace=False)
        return row

    def _run(self, case: LabCase) -> Row:
        options = RunOptions(arm=case.arm, seed=case.seed)
        row = run_case(case.case, self._ranks, options)
        if case.watched:
            row = with_hidden_writes(row, case.case, case.arm, self._ranks, options.case_timeout)
        return replace(row, command=case.command)

    def _assert_all(self, cases: Sequence[LabCase]) -> None:
        failed = [row for row in map(self._run, cases) if not _is_proven(row)]
        if failed:
            pytest.fail(rows_text(failed, len(cases)), pytrace=False)


def rows_text(failed: Sequence[Row], total: int) -> str:
    """Return what a test shows of the cases that failed.

    Args:
        failed: Their rows.
        total: How many cases ran.
    """
    shown = list(map(row_text, failed[:_MOST_SHOWN]))
    more = len(failed) - len(shown)
    lines = [f"{len(failed)} of {total} cases are not as without checkpointing", *shown]
    return "\n\n".join([*lines, *([f"and {more} more"] if more else [])])


def row_text(row: Row) -> str:
    """Return what a test shows of one case that failed: its findings, and how to run it again."""
    texts = [finding_text(finding, everything=True) for finding in row.findings]
    if row.unchecked:
        texts.append(f"  not checked: {row.unchecked}")
    return "\n".join([f"{row.outcome}: {row.case}", *texts, f"replay: {row.replay_command}"])


def _is_proven(row: Row) -> bool:
    return row.passed and not row.unchecked


def _name_of(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    name = importable_name(value) if callable(value) else None
    if name is None:
        raise TypeError(
            f"{what} must be importable, so that ranks can build it: got {value!r:.200}. Move it "
            "to the top of a module (no lambda, no function inside a test) and pass that function "
            "or its name, 'package.module:name'."
        )
    return name


def _command(request: VerifyRequest, case: Case) -> str:
    words = [
        f"--axis {shlex.quote(f'{axis.name}={value_text(value)}')}"
        for axis, value in zip(case.axes, case.values, strict=True)
        if len(axis.values) > 1 and axis.name != "device"
    ]
    return " ".join([request.command, *words])
