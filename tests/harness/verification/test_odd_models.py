"""Odd models get the right answer, or one clear line; all in this process."""

from __future__ import annotations

from typing import Any

import pytest

import harness
from harness.verification.advice import PRESERVE
from harness.verification.report import Report
from tests.harness.verification import odd_models as odd

ONE_CASE = (
    *("dropout=off", "bn_momentum=as_built", "running_stats=on", "wrapper=none", "autocast=off"),
    *("backward=plain", "accumulation=one", "steps=1", "broadcast_buffers=on", "init_sync=on"),
)


def verified(model: Any, inputs: Any, **options: Any) -> Report:
    # A lambda has no name that ranks could import, so that all runs here.
    return harness.verify(lambda: model(), inputs, **{"axes": ONE_CASE, **options})


SAFE = [
    (odd.Plain, odd.rows),
    (odd.RandomReLU, odd.rows),
    (odd.NoParameters, odd.rows_with_grad),
    (odd.OutputsNested, odd.rows),
    (odd.InPlace, odd.rows),
    (odd.Lazy, odd.rows),
    (odd.Tied, odd.rows),
    (odd.Hooked, odd.rows),
    (odd.NormOfGradients, odd.rows),
    (odd.CustomFunction, odd.rows_with_grad),
    (odd.Complex, odd.rows),
    (odd.Integers, odd.ids),
    (odd.Layers, odd.rows),
    (odd.DependsOnData, odd.rows),
    (odd.DependsOnChance, odd.rows),
    (odd.HugeBuffer, odd.rows),
    (odd.TakesSlots, odd.slotted),
    (odd.TakesDataclass, odd.dataclass_keywords),
    (odd.TakesTwo, odd.two),
    (odd.UnusedParameter, odd.rows),
    (odd.Generates, odd.rows),
    (odd.Double, odd.rows),
    (odd.Recurrent, odd.rows),
    (odd.ReturnsDistribution, odd.rows),
    (odd.sparse_block, odd.voxels),
    (odd.FillsACache, odd.rows),
    (odd.CountsOutside, odd.rows),
    (odd.FrozenTrunk, odd.rows),
    (odd.DetachedBranch, odd.rows),
    (odd.weight_norm, odd.rows),
    (odd.SparseGradient, odd.ids),
    (odd.SparseOutput, odd.rows),
    (odd.synchronized_norm, odd.rows),
]


@pytest.mark.parametrize(("model", "inputs"), SAFE, ids=[model.__name__ for model, _ in SAFE])
def test_a_model_that_can_be_checkpointed_passes(model: Any, inputs: Any) -> None:
    report = verified(model, inputs)

    assert report.exit_status == 0, report.text


UNSAFE = [
    (odd.CountingHook, odd.rows, "calls"),
    (odd.Counter, odd.rows, "seen"),
    (odd.ChangesItsInput, odd.rows, "changes a tensor in place that a boundary was given"),
    (odd.RaisesWhenReplayed, odd.rows, "this block can be used once"),
    (odd.OwnFlag, odd.rows, "BatchNorm1d 'block.1' was updated twice"),
    (odd.DeadFlag, odd.rows, "none was computed again"),
    (odd.WritesInDict, odd.rows, "WritesInDict wrote attribute \"stats['deep']['mean']\" ("),
    (odd.WritesInObject, odd.rows, "WritesInObject wrote attribute 'state.seen' (1 before, 2"),
    (odd.WritesASlot, odd.rows, "a replay wrote 'seen' (3 before"),
    (odd.WritesAPrivateSlot, odd.rows, "a replay wrote '_WritesAPrivateSlot__seen' (3 before"),
    (odd.WritesAnIterator, odd.rows, "(count(3) before the backward, count(4) after it)"),
    (odd.WritesAClosure, odd.rows, "bump.seen' (3 before"),
    (odd.WritesItsClass, odd.rows, "a replay wrote 'WritesItsClass.total' (list of"),
    (odd.WritesAGlobal, odd.rows, "odd_models.SEEN' ("),
    (odd.TwoKinds, odd.rows, "Counter 'decoder.0' wrote attribute"),
    (odd.CheckpointsItself, odd.rows, "BatchNorm1d 'blocks.0.norm' was updated twice"),
    (odd.CheckpointsItselfReentrantly, odd.rows, "its checkpointing is reentrant"),
    (odd.ParameterInForward, odd.rows, "make parameters and persistent buffers in __init__"),
]


@pytest.mark.parametrize(
    ("model", "inputs", "text"), UNSAFE, ids=[model.__name__ for model, *_ in UNSAFE]
)
def test_a_model_that_cannot_is_found_out_with_cause_and_remedy(
    model: Any, inputs: Any, text: str
) -> None:
    report = verified(model, inputs)

    assert report.exit_status == 1, report.text
    assert text in report.text
    assert "remedy: " in report.text


NOT_JUDGED = [
    (odd.Frozen, odd.rows, 1, "there is nothing to train"),
    (odd.NoParameters, odd.rows, 1, "there is nothing to train"),
    (odd.OutputsNone, odd.rows, 1, "there is nothing to make a loss of"),
    (odd.OnlyIntegersOut, odd.ids, 1, "no floating-point tensor, but torch.int64"),
    (odd.UnderNoGrad, odd.rows, 1, "no output carries a gradient"),
    (odd.Raises, odd.rows, 1, "ArithmeticError: the third matrix is singular"),
    (odd.only_a_list, odd.rows, 1, 'missing the required "forward"'),
    (odd.not_a_model, odd.rows, 2, "must give a torch.nn.Module, got 3"),
    (odd.Plain, None, 2, "--inputs is missing"),
    (odd.NotANumber, odd.rows, 1, "every gradient of an ordinary step is inf or nan"),
    (odd.wrapped, odd.rows, 2, "the model is inside DataParallel already"),
    (odd.traced, odd.rows, 1, "has no gradient checkpointing of its own: a GraphModule is rebuilt"),
    (odd.two_lines, odd.rows, 2, "raised RuntimeError: no weights"),
]


@pytest.mark.parametrize(
    ("model", "inputs", "status", "line"),
    NOT_JUDGED,
    ids=[f"{model.__name__}-{status}" for model, _, status, _ in NOT_JUDGED],
)
def test_what_cannot_be_judged_gets_one_clear_line(
    model: Any, inputs: Any, status: int, line: str
) -> None:
    report = verified(model, inputs)

    assert report.exit_status == status, report.text
    assert line in report.problem
    assert "\n" not in report.problem


def test_what_a_model_checkpoints_without_a_switch_is_judged_and_remedied() -> None:
    report = verified(odd.CheckpointsItself, odd.rows)

    assert report.judged.startswith("the calls of torch.utils.checkpoint")
    assert report.remedied is not None and report.remedied.passed
    assert verified(odd.CheckpointsItself, odd.rows, preserve=True).passed


def test_the_report_says_what_torch_alone_would_do_and_how_to_train_instead() -> None:
    report = verified(odd.Norms, odd.rows)

    assert report.passed
    assert report.bare is not None and report.bare.outcome == "differs"
    assert "make_checkpointable(model, Norm, use_checkpoint=True)" in report.text
    assert "torch.utils.checkpoint alone in its place: differs" in report.text
    plain = verified(odd.Layers, odd.rows)
    assert plain.bare is not None and plain.bare.passed


def test_a_model_itself_is_copied_and_a_factory_must_build_anew() -> None:
    assert harness.verify(odd.ONE_FOR_ALL, odd.rows, axes=ONE_CASE).passed
    assert not hasattr(odd.ONE_FOR_ALL, "gradient_checkpointing")

    shared = verified(lambda: odd.ONE_FOR_ALL, odd.rows)

    assert shared.exit_status == 2
    assert "returned the same Plain twice" in shared.problem


def test_arguments_that_nobody_gives_are_named() -> None:
    report = harness.verify(odd.needs_channels, odd.rows, ranks=1)

    assert report.exit_status == 2
    assert "it needs channels: name a function that takes nothing" in report.problem


def test_preserving_what_is_not_there_is_refused() -> None:
    report = verified(odd.Layers, odd.rows, preserve=True)

    assert report.exit_status == 2
    assert "Layers has none" in report.problem


def test_the_remedy_for_a_double_update_is_tried() -> None:
    report = verified(odd.OwnFlag, odd.rows)

    assert report.remedied is not None and report.remedied.passed
    assert {finding.remedy for finding in report.findings} == {PRESERVE}
    assert "wcn_ckpt.preserve_replay_state(model)" in PRESERVE
    assert verified(odd.OwnFlag, odd.rows, preserve=True).passed


def test_the_remedy_is_the_same_in_every_case_where_the_same_thing_is_wrong() -> None:
    axes = (*ONE_CASE[:6], "accumulation=one,joint,plain_then_checkpointed", *ONE_CASE[7:])
    report = verified(odd.OwnFlag, odd.rows, axes=axes)

    assert len(report.failing) == 3
    assert {finding.remedy for row in report.failing for finding in row.findings} == {PRESERVE}
    assert all(finding.path.startswith("buffers/") for finding in report.findings)


def test_a_loss_of_ones_own_is_used_and_a_wrong_one_refused() -> None:
    assert verified(odd.Plain, odd.rows, loss=odd.square_loss).passed

    refused = verified(odd.Plain, odd.rows, loss=odd.wrong_loss)

    assert "must return a tensor with one element, got 'high'" in refused.problem


@pytest.mark.parametrize(
    "boundaries", [["Plain"], ["layers.*"], ["layers.[01]"], ["."], "Plain", odd.Plain, [odd.Plain]]
)
def test_boundaries_are_named_by_class_and_by_path(boundaries: Any) -> None:
    report = verified(odd.Layers, odd.rows, boundaries=boundaries)

    assert report.passed, report.text


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("Missing", "matches no module; classes in the model: Layers, Linear, ModuleList, Plain"),
        ("layers", "ModuleList 'layers' cannot be made a boundary"),
    ],
)
def test_boundaries_that_cannot_be_are_refused(pattern: str, line: str) -> None:
    report = verified(odd.Layers, odd.rows, boundaries=[pattern])

    assert report.exit_status == 2
    assert line in report.problem
