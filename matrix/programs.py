"""Training steps as data: which forwards and which backwards a case runs, in which order.

A program is the part of a case that an executor walks through. The tables of this module are the
single place where a kind of backward pass, an accumulation pattern or an autocast dtype is
defined; the axes of the same names offer exactly the keys of these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from matrix.values import Value


@dataclass(frozen=True)
class Forward:
    """Run the model once."""

    microbatch: int
    """Which of the rank's microbatches is the input."""
    checkpointed: bool = True
    """False switches checkpointing off for this one forward, in every arm that has it."""


@dataclass(frozen=True)
class Backward:
    """Run ``loss.backward()`` on the summed losses of some forwards."""

    forwards: tuple[int, ...]
    """Indices, in program order, of the forwards whose losses are summed."""
    retain_graph: bool = False
    """Whether a later step goes through the same graph again."""


@dataclass(frozen=True)
class AutogradGrad:
    """Run ``torch.autograd.grad`` on the summed losses, for inputs and parameters."""

    forwards: tuple[int, ...]
    """Indices, in program order, of the forwards whose losses are summed."""


Step = Forward | Backward | AutogradGrad
"""One step of a program."""


@dataclass(frozen=True)
class Program:
    """One training step of one case."""

    wrapper: str
    """``none`` or ``ddp``."""
    broadcast_buffers: bool
    """Whether DDP copies rank 0's buffers to the others before a forward."""
    autocast: str | None
    """Name of the torch dtype forwards are autocast to; None for no autocast."""
    steps: tuple[Step, ...]
    """What runs, in order."""

    @property
    def forwards(self) -> tuple[Forward, ...]:
        """The forwards, in the order that ``Backward.forwards`` counts them."""
        return tuple(step for step in self.steps if isinstance(step, Forward))

    @property
    def microbatches(self) -> tuple[int, ...]:
        """The microbatches that the program reads, each once, ascending."""
        return tuple(sorted({forward.microbatch for forward in self.forwards}))

    def replays(self, forward: int) -> int:
        """Return how often a checkpointed arm must replay a forward.

        Args:
            forward: Index of the forward.

        Returns:
            The number of backward passes that go through it; 0 where it is not checkpointed.
        """
        if not self.forwards[forward].checkpointed:
            return 0
        backwards = (step for step in self.steps if not isinstance(step, Forward))
        return sum(forward in step.forwards for step in backwards)


Rounds = tuple[tuple[Forward, ...], ...]

ACCUMULATIONS: Mapping[str, Rounds] = {
    "one": ((Forward(0),),),
    "joint": ((Forward(0), Forward(1)),),
    "sequential": ((Forward(0),), (Forward(1),)),
    "plain_then_checkpointed": ((Forward(0, checkpointed=False), Forward(1)),),
}
"""Accumulation pattern -> rounds; a round is its forwards and then one backward through them."""


def _plain(forwards: tuple[int, ...]) -> tuple[Step, ...]:
    return (Backward(forwards),)


def _autograd_grad(forwards: tuple[int, ...]) -> tuple[Step, ...]:
    return (AutogradGrad(forwards),)


def _retained(forwards: tuple[int, ...]) -> tuple[Step, ...]:
    return (Backward(forwards, retain_graph=True), Backward(forwards))


BACKWARDS: Mapping[str, Callable[[tuple[int, ...]], tuple[Step, ...]]] = {
    "plain": _plain,
    "autograd.grad": _autograd_grad,
    "retained": _retained,
}
"""Kind of backward pass -> the steps that follow the forwards of a round."""

AUTOCAST_DTYPES: Mapping[str, str | None] = {"off": None, "bf16": "bfloat16"}
"""Autocast setting -> name of the torch dtype."""


def build_program(values: Mapping[str, Value]) -> Program:
    """Build the training step of a case.

    Args:
        values: A value for each axis; axes that do not shape the step are ignored.

    Returns:
        The program. ``broadcast_buffers`` is read under ``wrapper=ddp`` only.
    """
    after_forwards = BACKWARDS[str(values["backward"])]
    steps: list[Step] = []
    count = 0
    for forwards in ACCUMULATIONS[str(values["accumulation"])]:
        indices = tuple(range(count, count + len(forwards)))
        count += len(forwards)
        steps += [*forwards, *after_forwards(indices)]
    wrapper = str(values["wrapper"])
    return Program(
        wrapper=wrapper,
        broadcast_buffers=wrapper == "ddp" and bool(values["broadcast_buffers"]),
        autocast=AUTOCAST_DTYPES[str(values["autocast"])],
        steps=tuple(steps),
    )
