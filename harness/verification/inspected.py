"""What is asked about a model before it is judged, and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

INSPECT = "harness.verification.inspection:inspect"
"""Importable name of the task that answers a question."""

OWN_CALLS = "torch.utils.checkpoint"
"""What stands for the flag of a model that calls torch's checkpoint without one."""


@dataclass(frozen=True)
class Candidate:
    """Modules of one class that could be boundaries together."""

    pattern: str
    """What to give to ``--boundary``."""
    names: tuple[str, ...]
    """Their paths; the empty one is the model itself."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be looked at."""

    target: Any
    """What the model was named by."""
    inputs_target: Any
    """What the inputs were named by."""
    boundaries: tuple[str, ...] = ()
    """Patterns of boundaries; empty to use the model's own checkpointing, or to have some
    proposed."""
    loss: Any = None
    """A loss function or its importable name."""
    device: str = "cpu"
    """Where the model is put."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why a model cannot be judged, in one clear line."""

    text: str
    """What is wrong and what to do."""
    bad_call: bool
    """Whether what was named is at fault, rather than the model's training step."""
    detail: str = ""
    """A traceback, where there is one."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a model has."""

    name: str
    """Name of its class."""
    flag: str | None
    """How its own gradient checkpointing is switched on; see `harness.verification.flags`."""
    candidates: tuple[Candidate, ...]
    """What could be boundaries, the proposal first."""
    parameters: int
    """How many numbers it learns."""
    batch_norms: bool
    """Whether it has a BatchNorm that trains."""
    draws: bool
    """Whether it has dropout or the like that can be switched off."""
    unused_parameters: tuple[str, ...]
    """Parameters that require grad and get none from a step."""
    foreign_inputs: bool
    """Whether an input requires grad."""
    refusal: str = ""
    """Why the model itself cannot be a boundary; empty where it can."""


def proposed(found: Sequence[Candidate]) -> list[Candidate]:
    """Return what is checkpointed where a person names nothing.

    Args:
        found: What could be boundaries, as :class:`Inspection` has it.

    Returns:
        All classes of blocks in lists, without blocks inside others of them; or else the first
        candidate, which is the model itself; nothing where there is none.
    """
    blocks = [candidate for candidate in found if candidate.pattern != "."]
    names = [name for candidate in blocks for name in candidate.names]
    outermost = [
        Candidate(candidate.pattern, kept)
        for candidate in blocks
        if (kept := tuple(n for n in candidate.names if not within(n, names)))
    ]
    return outermost or list(found[:1])


def within(name: str, others: Sequence[str]) -> bool:
    """Tell whether a path lies inside one of others."""
    return any(name.startswith(f"{other}.") for other in others)
