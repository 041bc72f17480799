"""Faults in the way of a gradient."""

from __future__ import annotations

from harness.faults.fault import Fault, Sign
from harness.faults.subjects import (
    HALF_FROZEN,
    KEYWORD_INPUT,
    NESTED_INPUT,
    NO_INPUT_GRADIENT,
    STACK,
)
from harness.findings import CauseKind
from matrix.subjects import subject_named

_ARMS = "harness.faults.arms.gradients"
_MISSING = Sign(outcome="differs", path="gradients/first.*", kind=CauseKind.GRADIENT_MISSING)

GRADIENTS: tuple[Fault, ...] = (
    Fault(
        name="reentrant",
        family="gradients",
        report="pytorch/pytorch#51743",
        doc="the reentrant variant, which autograd.grad cannot go through",
        arm=f"{_ARMS}:reentrant",
        subjects=(subject_named("dropout"), subject_named("readme")),
        axes={"backward": ("autograd.grad",)},
        sign=Sign(outcome="error", path="exception", kind=CauseKind.REENTRANT),
        reach={"backward": ("autograd.grad",)},
    ),
    Fault(
        name="reentrant-without-input-gradient",
        family="gradients",
        report="pytorch/pytorch#7617",
        doc="the reentrant variant, on an input that requires no gradient",
        arm=f"{_ARMS}:reentrant",
        subjects=(NO_INPUT_GRADIENT,),
        sign=Sign(outcome="error", path="exception", kind=CauseKind.GRADIENT_MISSING),
    ),
    Fault(
        name="output-detached",
        family="gradients",
        report="pytorch/pytorch#124725",
        doc="the output of a boundary has lost its graph",
        arm=f"{_ARMS}:detached_output",
        subjects=(STACK,),
        sign=Sign(
            outcome="differs",
            path="gradients/first.*",
            kind=CauseKind.GRADIENT_MISSING,
            also=(CauseKind.NEVER_REPLAYED,),
        ),
    ),
    Fault(
        name="keyword-gradient-dropped",
        family="gradients",
        report="huggingface/peft#2826",
        doc="no gradient flows through a tensor that is passed by keyword",
        arm=f"{_ARMS}:keywords_detached",
        subjects=(KEYWORD_INPUT,),
        sign=_MISSING,
    ),
    Fault(
        name="nested-gradient-dropped",
        family="gradients",
        report="pytorch/pytorch#85088",
        doc="no gradient flows through a tensor in a dictionary",
        arm=f"{_ARMS}:nested_detached",
        subjects=(NESTED_INPUT,),
        sign=_MISSING,
    ),
    Fault(
        name="frozen-parameters-thawed",
        family="gradients",
        report="huggingface/transformers#23170",
        doc="frozen parameters get a gradient, because checkpointing made them require one",
        arm=f"{_ARMS}:thawed",
        subjects=(HALF_FROZEN,),
        sign=Sign(outcome="differs", path="gradients/frozen.*", kind=CauseKind.GRADIENT_UNEXPECTED),
    ),
)
"""Gradients that are missing, and some that should not be there."""
