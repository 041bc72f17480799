"""Chooses what is judged of a model, and makes a subject and an arm for the lab of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.arms import Arm, arm_named
from harness.verification.axes import narrowings
from harness.verification.inspected import (
    OWN_CALLS,
    Candidate,
    Inspection,
    Problem,
    proposed,
)
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
    use: str
    """The line of Python that trains a model in the way that is judged."""
    bare: Arm | None
    """Torch's checkpoint alone, at the boundaries of wcn_ckpt that are judged."""
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
    arm = arm_named("checkpointed")
    blocks = proposed(found.candidates)
    if request.preserve and (boundaries or found.flag in (None, "wcn_ckpt")):
        return Problem(
            text="--preserve is for a model's own gradient checkpointing, and "
            + ("--boundary names others" if boundaries else f"{found.name} has none")
            + "; leave it out: boundaries of wcn_ckpt keep their state anyway",
            bad_call=True,
        )
    if boundaries:
        judged = f"modules made boundaries: {' '.join(boundaries)}"
        use = _made("the modules that --boundary names")
    elif found.flag == "wcn_ckpt":
        judged = "its boundaries of wcn_ckpt, enabled"
        use = "wcn_ckpt.nn.modules.configure_gradient_checkpointing(model)"
    elif found.flag is not None:
        own = Arm(_OWN, _INSTALL, "the model's own gradient checkpointing")
        remedy = Arm(_PRESERVED, _INSTALL, "with preserve_replay_state", {"preserve": True})
        arm = remedy if request.preserve else own
        remedy = None if request.preserve else remedy
        if found.flag == OWN_CALLS:
            judged = f"the calls of {OWN_CALLS} that it makes in every training forward"
            use = "none: it is its own forward"
        else:
            judged = f"its own gradient checkpointing, switched on by {found.flag}"
            use = _switched_on(found.flag)
        if request.preserve:
            judged += ", after wcn_ckpt.preserve_replay_state(model)"
    elif blocks:
        boundaries = tuple(name for block in blocks for name in block.names)
        what = "the whole model"
        if boundaries != ("",):
            what = " and ".join(f"{len(block.names)} {block.pattern}" for block in blocks)
        judged = f"{what} made boundaries, proposed here; choose others with --boundary"
        use = _made("type(model)" if boundaries == ("",) else _classes(blocks))
    else:
        return Problem(
            text=f"no module of {found.name} can be a boundary, and it has no gradient "
            f"checkpointing of its own: {found.refusal}",
            bad_call=False,
        )
    subject = Subject(
        name=_name(found.name),
        factory=_MODEL,
        arguments=_arguments(request, found, boundaries),
        inputs=_INPUTS,
        input_arguments={"target": request.inputs, "model_target": request.target},
        loss=request.loss,
        unused_parameters=bool(found.unused_parameters),
        ranks_differ=False,
        narrowings=narrowings(found, ranks),
        doc=judged,
    )
    return Plan(
        subject=subject,
        arm=arm,
        judged=judged,
        use=use,
        bare=arm_named("torch_checkpoint") if arm == arm_named("checkpointed") else None,
        remedy=remedy,
    )


def _made(selected: str) -> str:
    return f"wcn_ckpt.make_checkpointable(model, {selected}, use_checkpoint=True)"


def _classes(blocks: Sequence[Candidate]) -> str:
    names = ", ".join(block.pattern for block in blocks)
    return names if len(blocks) == 1 else f"({names})"


def _switched_on(flag: str) -> str:
    if flag.endswith("_enable"):
        return f"model.{flag}()"
    return f"model.{flag}(True)" if flag.startswith("set_") else f"{flag} = True"


def _arguments(
    request: VerifyRequest, found: Inspection, boundaries: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "target": request.target,
        "inputs_target": request.inputs,
        "boundaries": boundaries,
        **({"own_calls": True} if found.flag == OWN_CALLS else {}),
    }


def _name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text) or "model"
