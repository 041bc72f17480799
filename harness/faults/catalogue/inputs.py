"""Faults in what a boundary is given."""

from __future__ import annotations

from harness.faults.fault import Fault, Sign
from harness.faults.subjects import LATE_BINDING, REUSED_WORKSPACE, SCALED_IN_PLACE, WRITTEN_BACK
from harness.findings import CauseKind

_TORCH = "harness.arms.torch_checkpoint:install"
_CHANGED = Sign(outcome="differs", path="*gradients/*", kind=CauseKind.INPUT_CHANGED)

INPUTS: tuple[Fault, ...] = (
    Fault(
        name="input-changed-after-boundary",
        family="inputs",
        report="deepspeedai/DeepSpeed#6969",
        doc="an input passed by keyword is overwritten once the boundary has returned",
        arm=_TORCH,
        subjects=(REUSED_WORKSPACE,),
        axes={"wrapper": ("none", "ddp")},
        sign=_CHANGED,
    ),
    Fault(
        name="input-changed-in-boundary",
        family="inputs",
        report="hpcaitech/ColossalAI#1463",
        doc="the boundary changes a tensor of a dictionary in place, and again in the replay",
        arm=_TORCH,
        subjects=(SCALED_IN_PLACE,),
        sign=_CHANGED,
    ),
    Fault(
        name="dictionary-written-back",
        family="inputs",
        report="Pointcept/Pointcept#161",
        doc="the boundary replaces an entry of the dictionary it is given",
        arm=_TORCH,
        subjects=(WRITTEN_BACK,),
        sign=_CHANGED,
    ),
    Fault(
        name="late-binding-closure",
        family="inputs",
        report="pytorch/pytorch#11944",
        doc="checkpointed closures over a loop variable all replay its last value",
        arm="harness.arms.checkpointed:install",
        subjects=(LATE_BINDING,),
        sign=Sign(
            outcome="differs",
            path="gradients/*",
            kind=CauseKind.ORDER_DRIFT,
            also=(CauseKind.GRADIENT_MISSING, CauseKind.GRADIENT_UNEXPECTED),
        ),
    ),
)
"""Tensors, containers and closures."""
