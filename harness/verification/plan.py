"""Chooses what is judged of a model, and makes a subject and an arm for the lab of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from harness.arms import Arm, arm_named
from harness.verification.axes import narrowings
from harness.verification.inspected import Inspection, Problem
from harness.verification.request import VerifyRequest
from matrix.subject import Subject

_MODEL = "harness.verification.building:model"
_INPUTS = "harness.verification.building:inputs"
_INSTALL = "harness.verification.flags:install"
_OWN = "own checkpointing"
_PRESERVED = "own checkpointing, replay state preserved"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is judged, and how."""

    subject: Subject
    """The model, as the lab takes it."""
    arm: Arm
    """What is judged against ordinary training."""
    judged: str
    """The same for people."""
    remedy: Arm | None
    """The arm with the one line of ours that is tried where the judged one has findings."""


def make_plan(request: VerifyRequest, found: Inspection, ranks: int | None) -> Plan | Problem:
    """Choose what is judged.

    Boundaries that a person named come first, then checkpointing of the model's own, then the
    first proposed boundaries.

    Args:
        request: What verify was asked.
        found: What the model has.
        ranks: Number of ranks; None where it runs in the caller's process.

    Returns:
        The plan, or why there is none.
    """
    boundaries = request.boundaries
    remedy: Arm | None = None
    if boundaries:
        arm = arm_named("checkpointed")
        judged = f"modules made boundaries: {' '.join(boundaries)}"
    elif found.flag == "wcn_ckpt":
        arm = arm_named("checkpointed")
        judged = "its boundaries of wcn_ckpt, enabled"
    elif found.flag is not None:
        own = Arm(_OWN, _INSTALL, "the model's own gradient checkpointing")
        remedy = Arm(_PRESERVED, _INSTALL, "with preserve_replay_state", {"preserve": True})
        arm = remedy if request.preserve else own
        remedy = None if request.preserve else remedy
        judged = f"its own gradient checkpointing, switched on by {found.flag}"
        if request.preserve:
            judged += ", after wcn_ckpt.preserve_replay_state(model)"
    elif found.candidates:
        chosen = found.candidates[0]
        boundaries = chosen.names
        arm = arm_named("checkpointed")
        what = (
            "the whole model" if chosen.names == ("",) else f"{len(chosen.names)} {chosen.pattern}"
        )
        judged = f"{what} made boundaries, proposed here; choose others with --boundary"
    else:
        return Problem(
            text=f"no module of {found.name} can be a boundary, and it has no gradient "
            "checkpointing of its own: nothing in it computes in a forward that can be run again",
            bad_call=False,
        )
    subject = Subject(
        name=_name(found.name),
        factory=_MODEL,
        arguments=_arguments(request, boundaries),
        inputs=_INPUTS,
        input_arguments={"target": request.inputs, "model_target": request.target},
        loss=request.loss,
        unused_parameters=bool(found.unused_parameters),
        ranks_differ=False,
        narrowings=narrowings(found, ranks),
        doc=judged,
    )
    return Plan(subject=subject, arm=arm, judged=judged, remedy=remedy)


def _arguments(request: VerifyRequest, boundaries: tuple[str, ...]) -> dict[str, Any]:
    return {
        "target": request.target,
        "inputs_target": request.inputs,
        "boundaries": boundaries,
    }


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text) or "model"
