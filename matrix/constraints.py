"""Which combinations of values are no case, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from matrix.axes import AXES, Axis
from matrix.subject import Narrowing, Subject
from matrix.values import Condition, Value, meets, value_text


@dataclass(frozen=True)
class Constraint:
    """An exclusion, with its reason."""

    when: Condition = field(hash=False)
    """The combinations that are left out. ``subject`` may be named like an axis, and so may
    ``batch_norm``, a trait of subjects: `constraints_on` puts the names of those that have it."""
    kind: Literal[
        "inapplicable", "raises", "checkpoint_raises", "meaningless", "by_chance", "elsewhere"
    ]
    """``inapplicable``: the option does not exist there, so the case runs what another case runs.
    ``raises``: the ordinary arm itself raises there. ``checkpoint_raises``: torch's own checkpoint
    does. ``meaningless``: the ordinary arm computes nothing there, or something that an oracle
    finds wrong, so being equal to it says nothing. ``by_chance``: whether torch's checkpoint raises
    is drawn at random. ``elsewhere``: it is run on another device."""
    reason: str
    """Why, in one sentence."""

    @property
    def text(self) -> str:
        """The condition as a person types it: ``wrapper=none,broadcast_buffers=off``."""
        return ",".join(
            f"{name}={'|'.join(value_text(value) for value in values)}"
            for name, values in self.when.items()
        )


_NOT_DDP = ("none", "fsdp2")
_NOT_FSDP = ("none", "ddp")
_TRACED = ("aot_eager", "inductor")
_CAST = ("bf16", "fp16")
_CAST_BEFORE = (
    "autocast keeps the weights that the first call cast, so the replay of the second casts where "
    "its forward did not, which torch's selective checkpointing refuses"
)

_MARKS = (
    "torch's selective checkpointing counts the profiler's marks of FSDP2, and a unit below a "
    "boundary that is gathered already sets fewer of them"
)


def _only_under(others: tuple[str, ...], axis: str, value: Value, reason: str) -> Constraint:
    return Constraint({"wrapper": others, axis: (value,)}, "inapplicable", reason)


CONSTRAINTS: tuple[Constraint, ...] = (
    _only_under(
        _NOT_DDP,
        "broadcast_buffers",
        False,
        "buffer broadcast is an option of DDP; without DDP there is nothing to switch off",
    ),
    _only_under(
        _NOT_DDP,
        "init_sync",
        False,
        "sync at init is an option of DDP; without DDP there is nothing to switch off",
    ),
    Constraint(
        when={"device": ("cpu",), "autocast": ("fp16",)},
        kind="elsewhere",
        reason="torch's autocast dtype on CPU is bfloat16; float16 is CUDA's and is run there",
    ),
    _only_under(_NOT_DDP, "static_graph", True, "a static graph is an option of DDP"),
    _only_under(
        _NOT_DDP,
        "find_unused_parameters",
        True,
        "to look for unused parameters is an option of DDP",
    ),
    _only_under(
        _NOT_DDP,
        "gradient_as_bucket_view",
        True,
        "buckets of gradients are DDP's, so no view of them is there to choose",
    ),
    Constraint(
        when={"wrapper": _NOT_FSDP, "fsdp_units": ("whole", "inside")},
        kind="inapplicable",
        reason="only FSDP2 shards modules, so there are no units to choose",
    ),
    _only_under(
        _NOT_FSDP, "reshard_after_forward", False, "only FSDP2 gathers parameters for a forward"
    ),
    _only_under(_NOT_FSDP, "mixed_precision", "bf16", "the dtype policy is an option of FSDP2"),
    _only_under(
        ("none",),
        "sync_bn",
        True,
        "without a wrapper each rank trains alone, on its own statistics",
    ),
    Constraint(
        when={"static_graph": (True,), "accumulation": ("no_sync",)},
        kind="raises",
        reason="DDP with a static graph runs into an internal assertion when the first backward is "
        "under no_sync",
    ),
    Constraint(
        when={"wrapper": ("fsdp2",), "backward": ("autograd.grad",)},
        kind="meaningless",
        reason="FSDP2 reduces in hooks that fill .grad; autograd.grad reaches no sharded parameter",
    ),
    Constraint(
        when={
            "batch_norm": (True,),
            "mixed_precision": ("bf16",),
            "running_stats": (True,),
            "sync_bn": (False,),
        },
        kind="raises",
        reason="BatchNorm refuses running statistics in float32 beside parameters in bfloat16",
    ),
    Constraint(
        when={"subject": ("spectral-norm",), "mixed_precision": ("bf16",)},
        kind="raises",
        reason="its vectors stay in float32 and cannot be multiplied by a weight in bfloat16",
    ),
    Constraint(
        when={"subject": ("codebook",), "mixed_precision": ("bf16",), "autocast": ("off",)},
        kind="raises",
        reason="its codes stay in float32 and cannot be multiplied by a weight in bfloat16",
    ),
    Constraint(
        when={"subject": ("instance-norm",), "mixed_precision": ("bf16",)},
        kind="meaningless",
        reason="InstanceNorm rounds its running statistics to bfloat16 there",
    ),
    Constraint(
        when={"subject": ("python-random",), "fsdp_units": ("inside",)},
        kind="meaningless",
        reason="each rank runs its layers in another order, and FSDP2 gathers parameters in the "
        "order in which units run",
    ),
    Constraint(
        when={"selective": (True,), "enable": ("user_context",)},
        kind="inapplicable",
        reason="a user passes one context_fn: that of the policy takes the place of the other",
    ),
    Constraint(
        when={"selective": (True,), "backward": ("retained", "retained3")},
        kind="checkpoint_raises",
        reason="torch's selective checkpointing allows one backward pass through a region",
    ),
    Constraint(
        when={"selective": (True,), "fsdp_units": ("inside",)},
        kind="checkpoint_raises",
        reason=_MARKS,
    ),
    Constraint(
        when={
            "selective": (True,),
            "wrapper": ("fsdp2",),
            "fsdp_units": ("block",),
            "nesting": ("nested",),
        },
        kind="checkpoint_raises",
        reason=_MARKS,
    ),
    Constraint(
        when={
            "subject": ("called-twice",),
            "selective": (True,),
            "autocast": _CAST,
            "sync_bn": (False,),
        },
        kind="checkpoint_raises",
        reason=_CAST_BEFORE,
    ),
    Constraint(
        when={
            "subject": ("called-twice",),
            "selective": (True,),
            "autocast": _CAST,
            "sync_bn": (True,),
            "running_stats": (False,),
        },
        kind="checkpoint_raises",
        reason=_CAST_BEFORE,
    ),
    Constraint(
        when={"subject": ("structure-flow",), "selective": (True,), "autocast": _CAST},
        kind="checkpoint_raises",
        reason="autocast keeps the cast of the condition, which every block reads, so the replay "
        "of a later block casts where its forward did not, which torch's selective checkpointing "
        "refuses",
    ),
    Constraint(
        when={
            "subject": (
                *("readme", "called-twice", "own-norm", "instance-norm"),
                *("dit", "dit-cross", "structure-flow"),
            ),
            "wrapper": ("ddp",),
            "selective": (True,),
            "compile": ("inside",),
        },
        kind="checkpoint_raises",
        reason="DDP has what is compiled traced in parts at its first call, inside of torch's "
        "selective checkpointing, whose marks then have no number, and the partitioner compares "
        "the numbers of neighbours",
    ),
    Constraint(
        when={
            "subject": ("pre-norm", "spaceformer"),
            "order": ("shuffled",),
            "nesting": ("nested",),
            "enable": ("rng_not_preserved",),
            "selective": (True,),
        },
        kind="by_chance",
        reason="the outer boundary's replay draws another order, whose windows are padded or not, "
        "and torch's selective checkpointing refuses the operators of the other kind",
    ),
    Constraint(
        when={"compile": _TRACED, "sync_bn": (True,)},
        kind="raises",
        reason="the collective of a synchronized norm is no part of the one graph asked for",
    ),
    Constraint(
        when={"compile": _TRACED, "wrapper": ("fsdp2",), "fsdp_units": ("inside",)},
        kind="raises",
        reason="the hooks of an FSDP2 unit are no part of the one graph asked for",
    ),
    Constraint(
        when={
            "compile": _TRACED,
            "batch_norm": (True,),
            "bn_momentum": (None,),
            "running_stats": (True,),
        },
        kind="raises",
        reason="the compiler cannot trace the cumulative average, whose factor is the value of a "
        "tensor",
    ),
    Constraint(
        when={"subject": ("structure-flow",), "nesting": ("nested",), "compile": _TRACED},
        kind="inapplicable",
        reason="the outer boundary refuses torch.compile around it: it holds the rotary phases, a "
        "buffer that no eager forward has watched",
    ),
    Constraint(
        when={"compile": _TRACED, "enable": ("user_context",)},
        kind="checkpoint_raises",
        reason="torch.compile traces no context function that is not a selective policy",
    ),
    Constraint(
        when={
            "compile": _TRACED,
            "accumulation": ("joint",),
            "batch_norm": (True,),
            "running_stats": (True,),
        },
        kind="checkpoint_raises",
        reason="the compiler saves running statistics for its own replay, and the second forward "
        "writes them before the backward pass of the first",
    ),
)
"""Every exclusion that does not come from a subject."""


def constraints_on(
    subjects: Iterable[Subject],
    axes: tuple[Axis, ...] = AXES,
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
) -> tuple[Constraint, ...]:
    """Return constraints as they are for some subjects, and what those themselves leave out.

    Args:
        subjects: The subjects.
        axes: The axes.
        constraints: The exclusions that hold for any subject.

    Returns:
        ``constraints`` with subjects by name, without those on a trait that none of them has; then
        one exclusion for each axis that some of the subjects lack or narrow.
    """
    subjects = tuple(subjects)
    found = [rule for rule in (_on_names(r, subjects, axes) for r in constraints) if rule]
    for axis in axes:
        without = tuple(s.name for s in subjects if axis.name not in s.options)
        if axis.option is not None and without:
            others = tuple(value for value in axis.values if value != axis.default)
            when = {"subject": without, axis.name: others}
            found.append(Constraint(when, "inapplicable", axis.option))
    named: dict[Narrowing, list[str]] = {}
    for subject in subjects:
        for narrowing in subject.narrowings:
            named.setdefault(narrowing, []).append(subject.name)
    for narrowing, names in named.items():
        for axis in axes:
            kept = narrowing.only.get(axis.name)
            if kept is not None and (out := [v for v in axis.values if v not in kept]):
                when = {"subject": tuple(names), axis.name: tuple(out)}
                found.append(Constraint(when, "inapplicable", narrowing.reason))
    return tuple(found)


def _on_names(
    rule: Constraint, subjects: tuple[Subject, ...], axes: tuple[Axis, ...]
) -> Constraint | None:
    """Put the names of subjects in place of a trait; None where no subject meets the condition."""
    if "batch_norm" not in rule.when:
        return rule
    optional = {axis.name for axis in axes if axis.option is not None}.intersection(rule.when)
    names = tuple(
        subject.name
        for subject in subjects
        if subject.batch_norm in rule.when["batch_norm"] and optional.issubset(subject.options)
    )
    when = {
        ("subject" if name == "batch_norm" else name): (names if name == "batch_norm" else values)
        for name, values in rule.when.items()
    }
    return replace(rule, when=when) if names else None


def exclusion(
    cell: Mapping[str, Value], constraints: tuple[Constraint, ...] = CONSTRAINTS
) -> Constraint | None:
    """Return the first constraint that excludes a cell.

    Args:
        cell: Axis name -> value, ``subject`` -> name, and traits as in ``Case.cell``. May be
            partial: a constraint applies once all that it names is there.
        constraints: The constraints to try.

    Returns:
        The constraint, or None where the cell is allowed.
    """
    for rule in constraints:
        if meets(cell, rule.when):
            return rule
    return None
