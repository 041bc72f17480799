"""Training steps as data: which forwards and which backwards a case runs, in which order.

A program is the part of a case that an executor walks through. The tables of this module are the
single place where a kind of backward pass, an accumulation pattern or an autocast dtype is
defined; the axes of the same names offer exactly the keys of these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from matrix.values import Value


@dataclass(frozen=True)
class Forward:
    """Run the model once."""

    microbatch: int
    """Which of the rank's microbatches is the input."""
    checkpointed: bool = True
    """False switches checkpointing off for this one forward, in every arm that has it."""
    synced: bool = True
    """False runs it under DDP's ``no_sync``; without DDP it makes no difference."""


@dataclass(frozen=True)
class Backward:
    """Run ``loss.backward()`` on the summed losses of some forwards."""

    forwards: tuple[int, ...]
    """Indices, in program order, of the forwards whose losses are summed."""
    retain_graph: bool = False
    """Whether a later step goes through the same graph again."""
    synced: bool = True
    """False runs it under DDP's ``no_sync``; without DDP it makes no difference."""


@dataclass(frozen=True)
class AutogradGrad:
    """Run ``torch.autograd.grad`` on the summed losses, for inputs and parameters."""

    forwards: tuple[int, ...]
    """Indices, in program order, of the forwards whose losses are summed."""


@dataclass(frozen=True)
class OptimizerStep:
    """Let SGD with momentum use the gradients, then drop them."""

    learning_rate: float = 0.1
    """Factor of the momentum buffer in the update."""
    momentum: float = 0.9
    """Factor of the momentum buffer from step to step."""


Step = Forward | Backward | AutogradGrad | OptimizerStep
"""One step of a program."""


@dataclass(frozen=True)
class Sharding:
    """Options of FSDP2's ``fully_shard``."""

    units: str
    """``whole``: the model alone; ``block``: each boundary, then the model; ``inside``: each child
    of a boundary that holds parameters, then the model."""
    reshard_after_forward: bool
    """Whether each unit drops its full parameters after a forward and gathers them again."""
    mixed_precision: str | None
    """Name of the torch dtype of parameters and gradients in a step; None for their own."""


@dataclass(frozen=True)
class Program:
    """The training of one case: one or more optimizer steps."""

    wrapper: str
    """``none``, ``ddp`` or ``fsdp2``."""
    broadcast_buffers: bool
    """Whether DDP copies rank 0's buffers to the others before a forward."""
    autocast: str | None
    """Name of the torch dtype forwards are autocast to; None for no autocast."""
    steps: tuple[Step, ...]
    """What runs, in order."""
    init_sync: bool = True
    """Whether DDP copies rank 0's parameters and buffers to the others when it is built."""
    device: str = "cpu"
    """Type of the device the model is on: ``cpu`` or ``cuda``."""
    find_unused: bool = False
    """Whether DDP looks for parameters that a backward does not reach."""
    static_graph: bool = False
    """Whether DDP is told that every step uses the same graph."""
    bucket_view: bool = False
    """Whether gradients are views of DDP's buckets."""
    sharding: Sharding | None = None
    """What FSDP2 shards; None under another wrapper."""
    sync_norms: bool = False
    """Whether BatchNorms compute their statistics over all ranks."""
    compiled: str = "off"
    """``off``; ``inside`` for the modules inside boundaries; or the backend of ``torch.compile``
    around the whole model."""

    @property
    def traces_boundaries(self) -> bool:
        """Whether ``torch.compile`` traces the boundaries themselves."""
        return self.compiled not in ("off", "inside")

    @property
    def forwards(self) -> tuple[Forward, ...]:
        """The forwards, in the order that ``Backward.forwards`` counts them."""
        return tuple(step for step in self.steps if isinstance(step, Forward))

    @property
    def microbatches(self) -> tuple[int, ...]:
        """The microbatches that the program reads, each once, ascending."""
        return tuple(sorted({forward.microbatch for forward in self.forwards}))

    @property
    def backwards(self) -> tuple[tuple[Backward | AutogradGrad, ...], ...]:
        """The backward passes before each optimizer step, in program order."""
        groups: list[tuple[Backward | AutogradGrad, ...]] = [()]
        for step in self.steps:
            if isinstance(step, (Backward, AutogradGrad)):
                groups[-1] += (step,)
            elif isinstance(step, OptimizerStep):
                groups.append(())
        return tuple(group for group in groups if group)

    def copies_buffers(self, forward: int) -> bool:
        """Tell whether DDP copies rank 0's buffers when a forward starts.

        Args:
            forward: Index of the forward.

        Returns:
            False without the option, and where the forward before it ran under ``no_sync``.
        """
        return self.broadcast_buffers and (forward == 0 or self.forwards[forward - 1].synced)

    def replays(self, forward: int) -> int:
        """Return how often a checkpointed arm must replay a forward.

        Args:
            forward: Index of the forward.

        Returns:
            The number of backward passes that go through it; 0 where it is not checkpointed.
        """
        if not self.forwards[forward].checkpointed:
            return 0
        return sum(forward in step.forwards for group in self.backwards for step in group)


@dataclass(frozen=True)
class Round:
    """Some forwards and then one kind of backward through them."""

    forwards: tuple[Forward, ...]
    """They count their microbatches from 0 in each optimizer step."""
    synced: bool = True
    """False runs the whole round under DDP's ``no_sync``."""


ACCUMULATIONS: Mapping[str, tuple[Round, ...]] = {
    "one": (Round((Forward(0),)),),
    "joint": (Round((Forward(0), Forward(1))),),
    "sequential": (Round((Forward(0),)), Round((Forward(1),))),
    "plain_then_checkpointed": (Round((Forward(0, checkpointed=False), Forward(1))),),
    "no_sync": (
        Round((Forward(0),), synced=False),
        Round((Forward(1),), synced=False),
        Round((Forward(2),), synced=False),
        Round((Forward(3),)),
    ),
}
"""Accumulation pattern -> the rounds before each optimizer step."""

Forwards = tuple[int, ...]


def _plain(forwards: Forwards, synced: bool) -> tuple[Step, ...]:
    return (Backward(forwards, synced=synced),)


def _autograd_grad(forwards: Forwards, synced: bool) -> tuple[Step, ...]:
    return (AutogradGrad(forwards),)


def _retained(forwards: Forwards, synced: bool) -> tuple[Step, ...]:
    return (Backward(forwards, True, synced), Backward(forwards, False, synced))


def _retained_twice(forwards: Forwards, synced: bool) -> tuple[Step, ...]:
    return (Backward(forwards, True, synced), *_retained(forwards, synced))


BACKWARDS: Mapping[str, Callable[[Forwards, bool], tuple[Step, ...]]] = {
    "plain": _plain,
    "autograd.grad": _autograd_grad,
    "retained": _retained,
    "retained3": _retained_twice,
}
"""Kind of backward pass -> the steps that follow the forwards of a round."""

AUTOCAST_DTYPES: Mapping[str, str | None] = {"off": None, "bf16": "bfloat16", "fp16": "float16"}
"""Autocast setting -> name of the torch dtype."""


def build_program(values: Mapping[str, Value]) -> Program:
    """Build the training of a case.

    Args:
        values: A value for each axis; axes that do not shape the program are ignored.

    Returns:
        The program. Options of a wrapper are read under that wrapper only.
    """
    after_forwards = BACKWARDS[str(values["backward"])]
    rounds = ACCUMULATIONS[str(values["accumulation"])]
    per_step = 1 + max(forward.microbatch for part in rounds for forward in part.forwards)
    steps: list[Step] = []
    count = 0
    for number in range(int(values["steps"] or 0)):
        for part in rounds:
            indices = tuple(range(count, count + len(part.forwards)))
            count += len(part.forwards)
            steps += [
                replace(
                    forward,
                    microbatch=forward.microbatch + number * per_step,
                    synced=part.synced,
                )
                for forward in part.forwards
            ]
            steps += after_forwards(indices, part.synced)
        steps.append(OptimizerStep())
    wrapper = str(values["wrapper"])
    return Program(
        wrapper=wrapper,
        broadcast_buffers=wrapper == "ddp" and bool(values["broadcast_buffers"]),
        init_sync=wrapper == "ddp" and bool(values["init_sync"]),
        autocast=AUTOCAST_DTYPES[str(values["autocast"])],
        device=str(values["device"]),
        find_unused=wrapper == "ddp" and bool(values["find_unused_parameters"]),
        static_graph=wrapper == "ddp" and bool(values["static_graph"]),
        bucket_view=wrapper == "ddp" and bool(values["gradient_as_bucket_view"]),
        sharding=_sharding(values) if wrapper == "fsdp2" else None,
        sync_norms=wrapper != "none" and bool(values["sync_bn"]),
        compiled=str(values["compile"]),
        steps=tuple(steps),
    )


def _sharding(values: Mapping[str, Value]) -> Sharding:
    return Sharding(
        units=str(values["fsdp_units"]),
        reshard_after_forward=bool(values["reshard_after_forward"]),
        mixed_precision=AUTOCAST_DTYPES[str(values["mixed_precision"])],
    )
