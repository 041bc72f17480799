"""What the checklist measures on a rank: boundaries, calls, types, memory and time of both arms."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any

import torch
from torch import nn

from harness.arms import ORDINARY
from harness.bench.saved_bytes import kept_by
from harness.boundaries import is_boundary
from harness.checklist.figures import BoundaryCalls, Costs, Measurement
from harness.checklist.rss import peak_memory
from harness.checklist.step import Step
from harness.checklist.types import types_in
from harness.computations import computes_as_boundary, count_computations
from harness.job import Job
from harness.ranks.context import RankContext
from harness.structures import tensors


def measure(job: Job, context: RankContext) -> Measurement:
    """Measure one case; a task for :meth:`harness.ranks.RankPool.run`.

    Args:
        job: The case. Its program is not run: each arm takes a few plain steps.
        context: The rank it runs on.
    """
    return measured(job, context.rank)


def measured(job: Job, rank: int = 0, *, steps: int = 3) -> Measurement:
    """Measure one case in this process.

    Steps of the two arms take turns, so that whatever else the machine does falls on both.

    Args:
        job: The case.
        rank: The rank whose inputs are used.
        steps: How many steps of each arm are timed.
    """
    arms = {name: Step(job, name, rank) for name in dict.fromkeys((ORDINARY, job.arm))}
    boundaries, declared, inputs, outputs, opaque = _observed(arms[job.arm])
    ordinary, judged = arms[ORDINARY], arms[job.arm]
    ordinary.timed()  # it makes tables and caches that later steps share
    saved = {name: _saved(step) for name, step in arms.items()}
    peaks = {}
    for name, step in arms.items():
        with peak_memory(step.device) as growth:
            step.timed()
            peaks[name] = growth()
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in arms}
    for _ in range(steps):
        for name, step in arms.items():
            times[name].append(step.timed())
    costs = {
        name: Costs(saved_bytes=saved[name], peak_bytes=peaks[name], **_medians(times[name]))
        for name in arms
    }
    return Measurement(
        device=judged.device.type,
        boundaries=boundaries,
        declared=declared,
        inputs=inputs,
        outputs=outputs,
        opaque=opaque,
        ordinary=costs[ORDINARY],
        judged=costs[job.arm],
    )


def _medians(times: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    names = ("forward", "backward", "optimizer")
    return {
        n: statistics.median(part) for n, part in zip(names, zip(*times, strict=True), strict=True)
    }


def _saved(step: Step) -> int | None:
    try:
        kept = kept_by(step.module, step.arguments, lambda module: step.forward())
    except Exception:  # a tensor class without a storage, a dispatch mode of the model's own
        return None
    finally:
        step.output = None
        step.optimize()
    return kept.bytes(kept.total)


class _Watch:
    """Counts computations of submodules, in forward and in backward, and notes types."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.calls: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        self.reached: Counter[str] = Counter()
        self.types: tuple[set[str], set[str]] = set(), set()
        self.opaque: set[str] = set()
        self.phase = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while a step runs."""
        end = [count_computations(self.module, self._count)]
        for name, child in self.module.named_modules():
            if isinstance(child, torch.jit.ScriptModule):
                continue  # it takes no hooks
            if not computes_as_boundary(child):
                hook = self._counting_hook(name)
                end.append(child.register_forward_pre_hook(hook).remove)
            end.append(child.register_forward_hook(self._reaching_hook(name)).remove)
            if name == "" or is_boundary(child):
                end.append(child.register_forward_hook(self._note, with_kwargs=True).remove)
        try:
            yield
        finally:
            for remove in end:
                remove()

    def _count(self, name: str) -> None:
        self.calls[self.phase][name] += 1

    def _counting_hook(self, name: str) -> Any:
        return lambda *_: self._count(name)

    def _reaching_hook(self, name: str) -> Any:
        """Count the calls in the forward to whose output a gradient comes."""

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self.phase:
                return
            found = [] if isinstance(output, GeneratorType) else tensors(output)
            calls: list[str] = []

            def reach(_: Any) -> None:
                if not calls:
                    calls.append(name)
                    self.reached[name] += 1

            for tensor in found:
                if tensor.requires_grad:
                    tensor.register_hook(reach)  # type: ignore[no-untyped-call]  # torch's
            if not found:
                self.reached[name] += 1  # nothing that could be watched

        return hook

    def _note(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.phase or isinstance(output, GeneratorType):
            return
        for found, value in zip(self.types, ([*args, *kwargs.values()], output), strict=True):
            names, opaque = types_in(value)
            found |= names
            self.opaque |= opaque


def _observed(
    step: Step,
) -> tuple[tuple[BoundaryCalls, ...], int, tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    watch = _Watch(step.module)
    with watch.watching():
        loss = step.forward()
        watch.phase = 1
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    step.output = None
    step.optimize()
    inputs, outputs = (tuple(sorted(names)) for names in watch.types)
    enabled = [m for m in step.module.modules() if getattr(m, "gradient_checkpointing", False)]
    boundaries = tuple(_boundaries(step.module, *watch.calls, watch.reached))
    return boundaries, len(enabled), inputs, outputs, tuple(sorted(watch.opaque))


def _boundaries(
    module: nn.Module, forwards: Counter[str], replays: Counter[str], reached: Counter[str]
) -> Iterator[BoundaryCalls]:
    """Yield our boundaries, and whatever other modules are the outermost that were replayed.

    A layer that checkpoints its own forward is not called in a replay, its children are: it stands
    for them.
    """
    children = dict(module.named_modules())
    found: dict[str, int] = {}
    for name, child in children.items():
        if computes_as_boundary(child):
            found[name] = replays[name]
    for name in children:
        if name in found or not replays[name] or _inside(name, found):
            continue
        parent = name.rpartition(".")[0]
        owns = bool(name) and getattr(children[parent], "gradient_checkpointing", False)
        again = round(replays[name] / max(1, forwards[name]) * max(1, forwards[parent]))
        found[parent if owns else name] = again if owns else replays[name]
    for name, count in found.items():
        if forwards[name]:
            yield BoundaryCalls(
                name=name,
                kind=type(children[name]).__name__,
                forwards=forwards[name],
                replays=count,
                wanted=min(forwards[name], reached[name]),
            )


def _inside(name: str, found: dict[str, int]) -> bool:
    return any(f"{name}.".startswith(f"{path}." if path else "") for path in found)
