"""Each oracle is shown a trace that is right and one that is broken in its own way."""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

from harness.findings import NEVER_REPLAYED
from harness.norms import NormWatch
from harness.oracles import (
    calls_as_expected,
    norms_of_backward,
    state_keys_unchanged,
    updates_equal_calls,
)
from harness.trace import Trace, buffers_of
from matrix.axes import AXES
from matrix.programs import Program, build_program
from matrix.values import Value


def program(**values: Value) -> Program:
    return build_program({**{axis.name: axis.default for axis in AXES}, **values})


def trace(calls_per_forward: list[int], total: int) -> Trace:
    return Trace(
        nn.Sequential(nn.BatchNorm1d(2)),
        forward_calls=[Counter({"block": calls}) for calls in calls_per_forward],
        total_calls=Counter({"block": total}),
    )


def watched(module: nn.Module, forwards: list[list[nn.Module]]) -> Trace:
    """Return a trace in which each forward called some norms of a module."""
    watch = NormWatch(module)
    start = {"buffers": buffers_of(module)}
    for norms in forwards:
        with watch.forward():
            for norm in norms:
                norm(torch.randn(4, 2))
    return Trace(module, points={"set-up": start}, norm_calls=watch.forwards)


def test_one_update_per_call_passes() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2))

    assert updates_equal_calls(watched(module, [[module[0]], [module[0]]]), rank=0) == []


def test_a_norm_that_is_called_twice_in_a_forward_has_two_updates() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    judged = watched(module, [[module[0], module[0], module[1]], [module[0]]])

    assert [int(norm.num_batches_tracked) for norm in module] == [3, 1]
    assert updates_equal_calls(judged, rank=0) == []


def test_an_update_outside_logical_forwards_is_found_with_the_norm_named() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2))
    judged = watched(module, [[module[0]]])
    module(torch.randn(4, 2))

    (finding,) = updates_equal_calls(judged, rank=1)

    assert (finding.rank, finding.path) == (1, "buffers/0.num_batches_tracked")
    assert (finding.expected, finding.got, finding.max_abs) == (1, 2, 1)
    assert "BatchNorm1d '0'" in finding.cause


def test_a_norm_that_ordinary_training_calls_in_backward_alone_is_left_out() -> None:
    ordinary = Trace(nn.Sequential(), norms_in_backward={"0", "1"})
    module = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2))
    judged = watched(module, [[module[0]]])
    module[1](torch.randn(4, 2))

    left_out = norms_of_backward(ordinary, judged)

    assert left_out == {"1"}
    assert norms_of_backward(Trace(nn.Sequential()), judged) == frozenset()
    assert len(updates_equal_calls(judged, rank=0)) == 1
    assert updates_equal_calls(judged, rank=0, left_out=left_out) == []
    module[0](torch.randn(4, 2))
    (finding,) = updates_equal_calls(judged, rank=0, left_out=left_out)
    assert finding.module == "0"


def test_a_norm_without_statistics_has_no_updates_to_count() -> None:
    judged = Trace(nn.BatchNorm1d(2, track_running_stats=False))

    assert updates_equal_calls(judged, rank=0) == []


def test_calls_are_one_per_forward_and_one_per_backward_that_replays() -> None:
    ordinary = trace([1], 1)

    assert calls_as_expected(program(), ordinary, trace([1], 2), rank=0) == []
    retained = program(backward="retained")
    assert calls_as_expected(retained, ordinary, trace([1], 3), rank=0) == []
    (finding,) = calls_as_expected(retained, ordinary, trace([1], 2), rank=0)
    assert (finding.path, finding.expected, finding.got) == ("calls/block", 3, 2)


def test_a_forward_that_was_not_checkpointed_is_not_replayed() -> None:
    mixed = program(accumulation="plain_then_checkpointed")
    ordinary = trace([1, 1], 2)

    assert calls_as_expected(mixed, ordinary, trace([1, 1], 3), rank=0) == []
    (finding,) = calls_as_expected(mixed, ordinary, trace([1, 1], 4), rank=0)
    assert (finding.expected, finding.got) == (3, 4)


def test_a_boundary_called_twice_in_a_forward_is_replayed_twice() -> None:
    assert calls_as_expected(program(), trace([2], 2), trace([2], 4), rank=0) == []


def test_an_arm_that_never_replayed_is_a_finding_of_its_own() -> None:
    (finding,) = calls_as_expected(program(), trace([1], 1), trace([1], 1), rank=0)

    assert finding.path == NEVER_REPLAYED
    assert "never replayed" in finding.cause


def test_a_subject_without_boundaries_has_nothing_to_replay() -> None:
    nothing = Trace(nn.Identity(), forward_calls=[Counter()])

    assert calls_as_expected(program(), nothing, nothing, rank=0) == []


def test_changed_state_keys_are_found() -> None:
    judged = trace([1], 2)
    judged.state_keys = (("a", "b"), ("a", "b"))
    assert state_keys_unchanged(judged, rank=0) == []

    judged.state_keys = (("a", "b"), ("a", "b", "c"))
    (finding,) = state_keys_unchanged(judged, rank=0)
    assert finding.path == "state_dict/c"

    judged.state_keys = (("a", "b"), ("b", "a"))
    (finding,) = state_keys_unchanged(judged, rank=0)
    assert finding.path == "state_dict/order"
