from __future__ import annotations

import pytest
import torch
from torch import nn

from harness.causes import explain, explain_raised
from harness.equivalence import Difference
from harness.findings import CauseKind
from harness.trace import Raised, Trace


def trace(updates: int) -> Trace:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    buffers = {"1.num_batches_tracked": torch.tensor(updates)}
    return Trace(module, points={"backward[0]": {"buffers": buffers}})


def difference(group: str, name: str) -> Difference:
    return Difference("backward[0]", group, name, expected=1, got=2)


@pytest.mark.parametrize("buffer", ["running_mean", "running_var", "num_batches_tracked"])
def test_a_repeated_update_is_named_with_its_norm_and_counts(buffer: str) -> None:
    why = explain(difference("buffers", f"1.{buffer}"), trace(1), trace(2))

    assert why.cause == (
        "BatchNorm1d '1' was updated twice: the replay ran its running-statistics update again "
        "(2 updates for 1 logical forward)"
    )
    assert "GradientCheckpointingMixin" in why.remedy
    assert (why.kind, why.module, why.phase) == (CauseKind.REPEATED_UPDATE, "1", "backward")


def test_more_than_one_repetition_is_counted() -> None:
    cause = explain(difference("buffers", "1.running_mean"), trace(1), trace(3)).cause

    assert "was updated 3 times: the replay ran its running-statistics update again" in cause


def test_a_norm_that_is_the_whole_subject_is_named_by_its_type() -> None:
    traces = [
        Trace(
            nn.BatchNorm1d(2),
            points={"backward[0]": {"buffers": {"num_batches_tracked": torch.tensor(count)}}},
        )
        for count in (1, 2)
    ]

    assert explain(difference("buffers", "running_mean"), *traces).cause.startswith(
        "BatchNorm1d was updated twice"
    )


def test_another_difference_of_a_norm_is_not_called_a_repeated_update() -> None:
    cause = explain(difference("buffers", "1.running_mean"), trace(1), trace(1)).cause

    assert "updated" not in cause


@pytest.mark.parametrize("name", ["0.counter", "gone.module.buffer", "plain"])
def test_a_buffer_that_is_no_norms_gets_a_general_cause(name: str) -> None:
    assert (
        "a replay wrote this buffer"
        in explain(difference("buffers", name), trace(1), trace(2)).cause
    )


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("1.calls", "1"),
        ("0.cache['a.b'].x", "0"),
        ("1.state.seen[0]", "1"),
        ("state.seen", ""),
        ("0._forward_hooks", "0"),
    ],
)
def test_what_is_written_in_what_a_module_holds_is_given_to_the_module(
    name: str, module: str
) -> None:
    why = explain(difference("attributes", name), trace(1), trace(1))

    assert (why.kind, why.module) == (CauseKind.STATE_WRITTEN, module)


@pytest.mark.parametrize(
    ("expected", "got", "kind"),
    [
        ("unchanged", True, CauseKind.GRADIENT_UNEXPECTED),
        (False, "unchanged", CauseKind.GRADIENT_UNEXPECTED),
        ("unchanged", False, CauseKind.GRADIENT_MISSING),
        (True, "unchanged", CauseKind.GRADIENT_MISSING),
    ],
)
def test_a_parameter_that_is_thawed_or_frozen_is_no_written_state(
    expected: bool | str, got: bool | str, kind: CauseKind
) -> None:
    change = Difference("backward[0]", "attributes", "0.weight.requires_grad", expected, got)
    why = explain(change, trace(1), trace(1))

    assert (why.kind, why.module) == (kind, "0")


def test_every_group_has_a_cause() -> None:
    for group in ("outputs", "losses", "random_state", "gradients", "input_gradients"):
        why = explain(difference(group, "x"), trace(1), trace(1))
        assert why.cause and why.remedy


def test_an_exception_of_the_ordinary_arm_blames_the_case() -> None:
    raised = Raised("forward[0]", "ValueError: no", "", 0.0)

    assert "ordinary arm itself raised" in explain_raised(raised, ordinary=True).cause
    assert "where the ordinary arm did not" in explain_raised(raised, ordinary=False).cause


def test_a_moved_version_counter_is_explained() -> None:
    error = "RuntimeError: ... has been modified by an inplace operation: [torch.FloatTensor [8]]"

    why = explain_raised(Raised("backward[0]", error, "", 0.0), ordinary=False)

    assert why.kind is CauseKind.SAVED_TENSOR_WRITTEN
    assert "version counters" in why.cause
    assert "do not write the original buffers" in why.remedy
