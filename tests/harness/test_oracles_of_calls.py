"""Counting the computations of boundaries: in eval mode, inside each other, under other names."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import nn

from harness.findings import CauseKind
from harness.oracles import calls_as_expected
from harness.trace import Trace
from matrix.axes import AXES
from matrix.blocks import MyBlock
from matrix.programs import Program, build_program

ONE_STEP: Program = build_program({axis.name: axis.default for axis in AXES})


def trace(module: nn.Module, per_forward: dict[str, int], total: dict[str, int]) -> Trace:
    return Trace(module, forward_calls=[Counter(per_forward)], total_calls=Counter(total))


def found(module: nn.Module, total: dict[str, int], judged: nn.Module | None = None) -> list[str]:
    """Return path and kind of what is found where each boundary is called once in a forward."""
    once = {name: 1 for name, child in module.named_modules() if isinstance(child, MyBlock)}
    findings = calls_as_expected(
        ONE_STEP, trace(module, once, once), trace(judged or module, {}, total), rank=0
    )
    return [f"{finding.path} {finding.kind.value}" for finding in findings]


@pytest.mark.parametrize(
    ("calls", "kind"), [(1, "never_replayed"), (2, None), (3, "unwanted_replay")]
)
def test_a_boundary_is_computed_once_in_forward_and_once_in_backward(
    calls: int, kind: str | None
) -> None:
    model = nn.ModuleDict({"a": MyBlock(2), "b": MyBlock(2)})

    assert found(model, {"a": calls, "b": 2}) == ([f"calls/a {kind}"] if kind else [])


def test_a_boundary_in_eval_mode_is_not_replayed() -> None:
    model = nn.ModuleDict({"frozen": MyBlock(2).eval(), "trained": MyBlock(2)})

    assert found(model, {"frozen": 1, "trained": 2}) == []
    assert found(model, {"frozen": 2, "trained": 2}) == ["calls/frozen unwanted_replay"]


@pytest.mark.parametrize(("inner", "right"), [(1, False), (2, True), (3, True), (4, False)])
def test_a_boundary_inside_another_may_be_computed_in_its_replay_too(
    inner: int, right: bool
) -> None:
    outer = MyBlock(2)
    outer.inner = MyBlock(2)

    assert (found(outer, {"": 2, "inner": inner}) == []) is right


def test_a_boundary_under_another_name_is_a_matter_of_names() -> None:
    ordinary = nn.ModuleDict({"a": MyBlock(2)})
    judged = nn.ModuleDict({"a": nn.Sequential(ordinary["a"])})

    names = found(ordinary, {"a.0": 2}, judged)

    assert names == [f"calls/{path} {CauseKind.STATE_KEYS.value}" for path in ("a", "a.0")]
