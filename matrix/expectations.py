"""Which facts hold across ranks, and which differences between the arms are expected, per cell.

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

    PARAMETERS_AGREE_AT_START = "parameters_agree_at_start"
    """Once the model is wrapped every parameter is the same on every rank."""
    PARAMETERS_DIFFER_AT_START = "parameters_differ_at_start"
    """Once the model is wrapped some parameter differs between ranks."""
    PARAMETERS_AGREE_AT_END = "parameters_agree_at_end"
    """After the last optimizer step every parameter is the same on every rank."""
    PARAMETERS_DIFFER_AT_END = "parameters_differ_at_end"
    """After the last optimizer step some parameter differs between ranks."""
    GRADIENTS_AGREE = "gradients_agree"
    """When the optimizer steps every parameter has the same gradient on every rank."""
    GRADIENTS_ARE_MEAN = "gradients_are_mean"
    """That gradient is the mean of the gradients each rank computes alone."""
    GRADIENTS_DIFFER_BEFORE_SYNC = "gradients_differ_before_sync"
    """After the first backward some gradient differs between ranks."""
    BUFFERS_AGREE_AT_FORWARD = "buffers_agree_at_forward"
    """When the second and when the last forward start every buffer is the same on every rank."""
    BUFFERS_DIFFER_AT_FORWARD = "buffers_differ_at_forward"
    """When the second and when the last forward start some buffer differs between ranks."""
    BUFFERS_AGREE_AT_END = "buffers_agree_at_end"
    """At the end of the program every buffer is the same on every rank."""
    BUFFERS_DIFFER_AT_END = "buffers_differ_at_end"
    """At the end of the program some buffer differs between ranks."""


RANKS_DIFFER: frozenset[Fact] = frozenset(fact for fact in Fact if "differ" in fact.value)
"""The facts that say that ranks differ: they hold where ranks draw different weights and data."""


@dataclass(frozen=True)
class Rule:
    """Where a fact holds."""

    fact: Fact
    """What holds."""
    when: Condition = field(hash=False)
    """In which cells. ``subject`` and ``buffers_follow_data`` may be named like axes."""
    reason: str
    """Why there, and why not elsewhere."""


_REDUCED = (
    "DDP reduces once per prepared forward: after one backward through the newest forward the "
    "gradients are the mean over ranks; a second pass over a retained graph and autograd.grad are "
    "not reduced"
)
_COPIED = "DDP copies rank 0's buffers to all ranks when a forward starts, not when it ends"
_NOT_COPIED = "each rank's statistics come from its own data and nothing copies them"
_NOT_AFTER_NO_SYNC = "DDP copies no buffers when a forward starts that follows one under no_sync"
_SHARDED = "each rank holds a shard of one model, and its gradients and steps are of that shard"
_REDUCED_SHARDS = (
    "FSDP2 reduces in every backward pass, also in a second one over a retained graph; with "
    "parameters in bfloat16 the ranks compute other gradients than alone, and where units share an "
    "input autograd adds its gradients in another order than alone"
)
_SHARED_STATISTICS = "the ranks compute the statistics of a BatchNorm over all their rows together"
_SYNCED_FORWARDS = ("joint", "sequential", "plain_then_checkpointed")
_DDP: Condition = {"wrapper": ("ddp",)}
_SYNCED: Condition = {**_DDP, "init_sync": (True,)}
_UNSYNCED: Condition = {**_DDP, "init_sync": (False,)}
_COPIES: Condition = {**_DDP, "broadcast_buffers": (True,)}
_FSDP: Condition = {"wrapper": ("fsdp2",)}
_OWN: Condition = {
    "running_stats": (True,),
    "buffers_follow_data": (True,),
    "sync_bn": (False,),
}
_OWN_BUFFERS: Condition = {**_DDP, **_OWN}
_OWN_SHARDED: Condition = {**_FSDP, **_OWN}
_NO_COPIES: Condition = {**_OWN_BUFFERS, "broadcast_buffers": (False,)}

RULES: tuple[Rule, ...] = (
    Rule(
        Fact.PARAMETERS_AGREE_AT_START,
        _SYNCED,
        "ranks draw different weights and DDP copies rank 0's to all of them",
    ),
    Rule(
        Fact.PARAMETERS_DIFFER_AT_START,
        _UNSYNCED,
        "ranks draw different weights and nothing copies them",
    ),
    Rule(
        Fact.PARAMETERS_AGREE_AT_END,
        {**_SYNCED, "backward": ("plain",)},
        "equal weights that take equal steps stay equal",
    ),
    Rule(
        Fact.PARAMETERS_DIFFER_AT_END,
        _UNSYNCED,
        "reduced gradients do not make different weights equal",
    ),
    Rule(
        Fact.PARAMETERS_DIFFER_AT_END,
        {**_SYNCED, "backward": ("autograd.grad", "retained", "retained3")},
        "ranks take steps along gradients that are not reduced, or not entirely",
    ),
    Rule(Fact.GRADIENTS_AGREE, {**_DDP, "backward": ("plain",)}, _REDUCED),
    Rule(Fact.GRADIENTS_ARE_MEAN, {**_DDP, "backward": ("plain",)}, _REDUCED),
    Rule(
        Fact.GRADIENTS_DIFFER_BEFORE_SYNC,
        {**_DDP, "accumulation": ("no_sync",), "backward": ("plain", "retained", "retained3")},
        "under no_sync each rank keeps the gradient of its own data",
    ),
    Rule(Fact.BUFFERS_AGREE_AT_FORWARD, {**_COPIES, "accumulation": _SYNCED_FORWARDS}, _COPIED),
    Rule(
        Fact.BUFFERS_AGREE_AT_FORWARD,
        {**_COPIES, "accumulation": ("one",), "steps": (3,)},
        _COPIED,
    ),
    Rule(
        Fact.BUFFERS_DIFFER_AT_FORWARD,
        {**_NO_COPIES, "accumulation": _SYNCED_FORWARDS},
        _NOT_COPIED,
    ),
    Rule(Fact.BUFFERS_DIFFER_AT_FORWARD, {**_NO_COPIES, "steps": (3,)}, _NOT_COPIED),
    Rule(
        Fact.BUFFERS_DIFFER_AT_FORWARD,
        {**_OWN_BUFFERS, "accumulation": ("no_sync",)},
        _NOT_AFTER_NO_SYNC,
    ),
    Rule(
        Fact.BUFFERS_DIFFER_AT_END,
        _OWN_BUFFERS,
        "the last forward updates each rank's statistics from its own data; a copy could only "
        "happen when the next forward starts",
    ),
    Rule(Fact.PARAMETERS_AGREE_AT_START, _FSDP, _SHARDED),
    Rule(Fact.PARAMETERS_AGREE_AT_END, _FSDP, _SHARDED),
    Rule(Fact.GRADIENTS_AGREE, _FSDP, _SHARDED),
    Rule(
        Fact.GRADIENTS_ARE_MEAN,
        {**_FSDP, "mixed_precision": ("off",), "fsdp_units": ("block", "whole")},
        _REDUCED_SHARDS,
    ),
    Rule(Fact.BUFFERS_DIFFER_AT_END, _OWN_SHARDED, _NOT_COPIED),
    Rule(Fact.BUFFERS_DIFFER_AT_FORWARD, {**_OWN_SHARDED, "steps": (3,)}, _NOT_COPIED),
    Rule(
        Fact.BUFFERS_DIFFER_AT_FORWARD,
        {**_OWN_SHARDED, "accumulation": (*_SYNCED_FORWARDS, "no_sync")},
        _NOT_COPIED,
    ),
    Rule(Fact.BUFFERS_AGREE_AT_FORWARD, {"sync_bn": (True,)}, _SHARED_STATISTICS),
    Rule(Fact.BUFFERS_AGREE_AT_END, {"sync_bn": (True,)}, _SHARED_STATISTICS),
)
"""Every fact that is checked, with the cells it is checked in."""


@dataclass(frozen=True)
class ExpectedDifference:
    """A difference between the arms, or an exception of the ordinary arm, that is no fault."""

    when: Condition = field(hash=False)
    """In which cells."""
    groups: tuple[str, ...]
    """Kinds of observations that may differ; ``exception`` for the ordinary arm raising."""
    must: bool
    """Whether a case in which nothing differs is a finding."""
    reason: str
    """Why it differs."""


_ALL_VALUES = (
    *("outputs", "losses", "gradients", "returned_gradients", "input_gradients"),
    *("parameters", "momenta", "buffers", "random_state"),
)
_RNG = (
    "with preserve_rng_state=False a replay draws other random numbers than the forward, so the "
    "backward pass belongs to another function, and the next forward draws from elsewhere in the "
    "stream; this is what the option says"
)

# A boundary that torch.compile traces preserves random numbers, whatever it is asked.
_NOT_PRESERVED: Condition = {"enable": ("rng_not_preserved",), "compile": ("off", "inside")}

EXPECTED_DIFFERENCES: tuple[ExpectedDifference, ...] = (
    ExpectedDifference({"subject": ("dropout",), **_NOT_PRESERVED}, _ALL_VALUES, True, _RNG),
    ExpectedDifference({"dropout": (0.2,), **_NOT_PRESERVED}, _ALL_VALUES, True, _RNG),
    # Four layers have 24 orders, so by chance a replay may draw the order of its forward.
    ExpectedDifference(
        {"subject": ("python-random",), "enable": ("rng_not_preserved",)}, _ALL_VALUES, False, _RNG
    ),
    # Not each kind of attention has an order to draw.
    ExpectedDifference(
        {"order": ("shuffled",), "nesting": ("nested",), "enable": ("rng_not_preserved",)},
        _ALL_VALUES,
        False,
        _RNG,
    ),
    ExpectedDifference(
        {
            "device": ("cuda",),
            "wrapper": ("ddp",),
            "broadcast_buffers": (True,),
            "accumulation": ("joint", "plain_then_checkpointed"),
        },
        ("exception",),
        False,
        "on CUDA, DDP's buffer copy of the second forward may write what the first one saved "
        "(pytorch/pytorch#175024); gloo on CPU does not",
    ),
)
"""Every difference that is expected, with the cells it is expected in."""


def expected_facts(cell: Mapping[str, Value], rules: tuple[Rule, ...] = RULES) -> frozenset[Fact]:
    """Return the facts that must hold in a cell.

    Args:
        cell: Axis name -> value, for every axis, and the subject's traits.
        rules: The rules to apply.

    Returns:
        The facts; empty where ranks are not connected.
    """
    return frozenset(rule.fact for rule in rules if meets(cell, rule.when))


def expected_differences(
    cell: Mapping[str, Value],
    table: tuple[ExpectedDifference, ...] = EXPECTED_DIFFERENCES,
) -> tuple[ExpectedDifference, ...]:
    """Return the differences that are expected in a cell.

    Args:
        cell: Axis name -> value, for every axis, and the subject's traits.
        table: The differences to look among.

    Returns:
        Those whose condition the cell meets.
    """
    return tuple(expected for expected in table if meets(cell, expected.when))
