"""Ways to run a subject that can be judged against its ordinary run.

An arm is a function ``install(module) -> switch``. ``install`` prepares a newly built module, whose
boundaries are enabled in the way the case asks for, in place; ``switch(False)`` or ``switch(True)``
is called before a forward that is to be run otherwise than the one before it, the first one with
checkpointing on. To add an arm, write such a function and list it in ``ARMS``; one that is not
listed is judged just as well by its importable name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from matrix.choices import no_such

ORDINARY = "harness.arms.ordinary:install"
"""The arm that others are judged against."""


@dataclass(frozen=True)
class Arm:
    """One way to run a subject."""

    name: str
    """As in ``--arm``."""
    install: str
    """Importable name of the install function."""
    doc: str
    """What it is, in one line."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the install function."""


ARMS: tuple[Arm, ...] = (
    Arm(
        "checkpointed",
        "harness.arms.checkpointed:install",
        "wcn_ckpt's own checkpointing, through its public API; the default",
    ),
    Arm("ordinary", ORDINARY, "no checkpointing: shows that the ordinary arm equals itself"),
    Arm(
        "torch_checkpoint",
        "harness.arms.torch_checkpoint:install",
        "a bare torch.utils.checkpoint in place of wcn_ckpt's",
    ),
    Arm(
        "snapshot_copy",
        "harness.arms.snapshot_copy:install",
        "the same, with norm buffers restored after a replay by snapshot and copy_",
    ),
)
"""The arms with a short name that are there in every installation."""

PEERS: tuple[Arm, ...] = (
    Arm(
        "torch_wrapper",
        "harness.arms.torch_wrapper:install",
        "checkpoint_wrapper of torch.distributed around every boundary",
    ),
    Arm(
        "fairscale_wrapper",
        "harness.arms.fairscale_wrapper:install",
        "fairscale's checkpoint_wrapper around every boundary; needs the extra 'peers'",
    ),
    Arm(
        "transformers_layer",
        "harness.arms.transformers_layer:install",
        "every boundary as a layer of Transformers with its flag on; needs the extra 'hf'",
    ),
)
"""Other ways to checkpoint a block that people use, to be judged like our own."""


def arm_named(name: str) -> Arm:
    """Return the arm called ``name``.

    Args:
        name: A short name from ``ARMS``, or an importable name of an install function.

    Raises:
        ValueError: If it is neither; the message lists the short names.
    """
    for arm in (*ARMS, *PEERS):
        if arm.name == name:
            return arm
    if ":" in name:
        return Arm(name, name, "given by importable name")
    message = no_such("arm", name, [arm.name for arm in (*ARMS, *PEERS)])
    raise ValueError(f"{message}, or an importable name such as 'my_arms.py:install'")
