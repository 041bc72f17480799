"""Which facts hold across ranks, per cell.

"All ranks agree" is not true of ordinary DDP in every cell, and never asserting it would miss
real faults. So each fact is stated for the cells where it holds, with its reason. A fact that is
not stated for a cell is not checked there; the comparison of the two arms on each rank still is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from matrix.values import Condition, Value, meets


class Fact(str, Enum):
    """Something that is true across ranks."""

    GRADIENTS_AGREE = "gradients_agree"
    """At the end of the step every parameter has the same gradient on every rank."""
    GRADIENTS_ARE_MEAN = "gradients_are_mean"
    """That gradient is the mean of the gradients each rank computes alone."""
    BUFFERS_AGREE_AT_FORWARD = "buffers_agree_at_forward"
    """When the second forward starts every buffer is the same on every rank."""
    BUFFERS_DIFFER_AT_FORWARD = "buffers_differ_at_forward"
    """When the second forward starts some buffer differs between ranks."""
    BUFFERS_DIFFER_AT_END = "buffers_differ_at_end"
    """At the end of the step some buffer differs between ranks."""


@dataclass(frozen=True)
class Rule:
    """Where a fact holds."""

    fact: Fact
    """What holds."""
    when: Condition = field(hash=False)
    """In which cells."""
    reason: str
    """Why there, and why not elsewhere."""


_REDUCED = (
    "DDP reduces once per prepared forward: after one backward through the newest forward the "
    "gradients are the mean over ranks; a second pass over a retained graph and autograd.grad are "
    "not reduced"
)
_SEVERAL_FORWARDS = ("joint", "sequential", "plain_then_checkpointed")

RULES: tuple[Rule, ...] = (
    Rule(Fact.GRADIENTS_AGREE, {"wrapper": ("ddp",), "backward": ("plain",)}, _REDUCED),
    Rule(Fact.GRADIENTS_ARE_MEAN, {"wrapper": ("ddp",), "backward": ("plain",)}, _REDUCED),
    Rule(
        Fact.BUFFERS_AGREE_AT_FORWARD,
        {
            "wrapper": ("ddp",),
            "broadcast_buffers": (True,),
            "accumulation": _SEVERAL_FORWARDS,
        },
        "DDP copies rank 0's buffers to all ranks when a forward starts, not when it ends",
    ),
    Rule(
        Fact.BUFFERS_DIFFER_AT_FORWARD,
        {
            "wrapper": ("ddp",),
            "broadcast_buffers": (False,),
            "running_stats": (True,),
            "accumulation": _SEVERAL_FORWARDS,
        },
        "each rank's statistics come from its own data and nothing copies them",
    ),
    Rule(
        Fact.BUFFERS_DIFFER_AT_END,
        {"wrapper": ("ddp",), "running_stats": (True,)},
        "the last forward updates each rank's statistics from its own data; a copy could only "
        "happen when the next forward starts",
    ),
)
"""Every fact that is checked, with the cells it is checked in."""


def expected_facts(cell: Mapping[str, Value], rules: tuple[Rule, ...] = RULES) -> frozenset[Fact]:
    """Return the facts that must hold in a cell.

    Args:
        cell: Axis name -> value, for every axis.
        rules: The rules to apply.

    Returns:
        The facts; empty where ranks are not connected.
    """
    return frozenset(rule.fact for rule in rules if meets(cell, rule.when))
