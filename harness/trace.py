"""What one rank saw of one arm."""

from __future__ import annotations

import random
import sys
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor, nn

from harness.computations import (
    Computation,
    count_computations,
    in_backward,
    wrap_computations,
)
from harness.norms import NormCall
from harness.sharding import whole
from harness.structures import dense, tensors
from harness.walking import named_buffers, named_parameters

_ALL_BITS = (1 << 64) - 1
_UNKNOWN = 1 << 32
"""Stands for the passes that come to a call of which no output can be watched."""

Observations = dict[str, dict[str, Any]]
"""Group (``outputs``, ``buffers``, ...) -> name -> tensor, number, text or None."""


@dataclass(frozen=True)
class Raised:
    """An exception of an arm."""

    point: str
    """Where in the program."""
    error: str
    """Type and message."""
    traceback: str
    """The traceback."""
    at: float
    """When, in seconds of the machine's monotonic clock."""


@dataclass
class Trace:
    """Everything that is compared or checked after an arm has run."""

    module: nn.Module
    """The subject, as the arm left it."""
    points: dict[str, Observations] = field(default_factory=dict)
    """Point in the program -> what was seen there, in program order."""
    forward_calls: list[Counter[str]] = field(default_factory=list)
    """For each forward: boundary -> how often its computation was called during that forward."""
    total_calls: Counter[str] = field(default_factory=Counter)
    """Boundary -> how often its computation was called in all, replays included."""
    calls_in_backward: Counter[str] = field(default_factory=Counter)
    """Boundary -> how often its computation was called in a backward pass."""
    replays_in_forward: Counter[str] = field(default_factory=Counter)
    """Boundary -> how often of these in a pass that a forward itself asked for."""
    reached: list[Counter[str]] = field(default_factory=list)
    """For each forward: boundary -> to how many of its calls there a backward pass came, counted
    for each pass; empty where that was not watched."""
    norm_calls: list[list[NormCall]] = field(default_factory=list)
    """For each forward: the norm calls in it; empty where they were not watched."""
    norms_in_backward: set[str] = field(default_factory=set)
    """Norms that update their running statistics in backward passes; only of the ordinary arm."""
    state_keys: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Keys of the ``state_dict``: as built, and at the end."""
    raised: Raised | None = None
    """What the arm raised, if it did."""
    now: str = "set-up"
    """The point in the program that is being worked on."""

    @property
    def replays(self) -> int:
        """How many boundary computations were replays."""
        return self.total_calls.total() - sum(calls.total() for calls in self.forward_calls)

    @contextmanager
    def point(self, name: str) -> Iterator[None]:
        """Work on a point; note that an exception passed there, and let it pass."""
        self.now = name
        try:
            yield
        except Exception as error:
            if self.raised is None:
                self.raised = raised_at(name, error)
            raise

    def count_calls(self) -> None:
        """Count, from now on, the calls of every boundary's computation."""

        def count(name: str) -> None:
            self.total_calls[name] += 1
            if in_backward():
                self.calls_in_backward[name] += 1
                if self.now.startswith("forward"):
                    self.replays_in_forward[name] += 1

        count_computations(self.module, count)

    def watch_reached(self) -> None:
        """Note, from now on, to which calls of boundaries backward passes come.

        For an arm without checkpointing: there a forward is all that computes.
        """

        def watched(function: Computation, name: str) -> Computation:
            def watching(*args: Any, **kwargs: Any) -> Any:
                output = function(*args, **kwargs)
                self._watch_output(name, output)
                return output

            return watching

        wrap_computations(self.module, watched)

    def _watch_output(self, name: str, output: Any) -> None:
        forward = len(self.forward_calls)
        while len(self.reached) <= forward:
            self.reached.append(Counter())
        found = [] if isinstance(output, GeneratorType) else tensors(output)
        if not found:
            self.reached[forward][name] += _UNKNOWN
        passes: set[str] = set()
        # A graph that held the trace would hold, through the module, whatever holds the graph:
        # a cycle that Python's collector does not see.
        this = weakref.ref(self)

        def reach(_: Tensor) -> None:
            trace = this()
            if trace is not None and trace.now not in passes:
                passes.add(trace.now)
                trace.reached[forward][name] += 1

        for tensor in found:
            if tensor.requires_grad:
                tensor.register_hook(reach)  # type: ignore[no-untyped-call]  # torch leaves it


def raised_at(point: str, error: Exception) -> Raised:
    """Describe an exception without keeping its frames alive."""
    return Raised(
        point=point,
        error=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
        at=time.monotonic(),
    )


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    """Copy the buffers of a module."""
    return {name: buffer.detach().clone() for name, buffer in named_buffers(module)}


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """Copy the parameters of a module, whole where ranks hold shards of them."""
    copies = whole(dict(named_parameters(module)))
    return {name: copy for name, copy in copies.items() if copy is not None}


def gradients_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Copy ``.grad`` of every parameter, whole as well; None where there is none."""
    gradients = {name: parameter.grad for name, parameter in named_parameters(module)}
    return whole({name: None if g is None else dense(g) for name, g in gradients.items()})


def random_states() -> Mapping[str, str]:
    """Digest the state of torch's, Python's and NumPy's global generators.

    CUDA's is left out where CUDA is not in use, NumPy's where nothing has imported NumPy. Digests
    can be compared within one process only.
    """
    states = {
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "python": hash(random.getstate()),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        states["cuda"] = hash(torch.cuda.get_rng_state().numpy().tobytes())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = hash((name, keys.tobytes(), *rest))
    return {name: f"{state & _ALL_BITS:016x}" for name, state in states.items()}
