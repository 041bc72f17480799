"""How much of a training step is spent in our own checkpointing code.

The difference between two whole steps is far above the cost in question, so the time is counted
where it is spent. A clock runs from the call of a boundary until its frame is made, and in each run
of the frame, forward or replay, before and after the block's own computation. It stands while the
block, torch's checkpoint and autograd work. What our code calls, such as pytree, is in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from harness.bench.benchmark import Benchmark, Measurement
from harness.bench.estimate import median_of
from harness.bench.paired import no_collection, seconds_of
from harness.bench.workloads import mink_unet, training_step
from wcn_ckpt.checkpointing import call as boundary_call
from wcn_ckpt.checkpointing.replay.frame import ReplayFrame


class Clock:
    """A clock that can be stopped and started."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Let it run, if it stands."""
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        """Let it stand, if it runs."""
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
            self._since = None

    def standing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function during which the clock stands, and after which it runs."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.stop()
            try:
                return function(*args, **kwargs)
            finally:
                self.start()

        return call


@contextmanager
def own_time(model: nn.Module) -> Iterator[Clock]:
    """Count the time that boundaries of a model take besides their computation.

    Args:
        model: the model, used in this thread alone.

    Yields:
        The clock.
    """
    clock = Clock()

    class TimedFrame(ReplayFrame):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            clock.stop()

        def __call__(self, *saved: Any) -> Any:
            clock.start()
            try:
                return super().__call__(*saved)
            finally:
                clock.stop()

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            clock.start()
            try:
                return call(clock.standing(fn), *args, **kwargs)
            finally:
                clock.stop()

        return timed_call

    name = "_gradient_checkpointed_call"
    boundaries = [module for module in model.modules() if hasattr(module, name)]
    calls: Any = boundary_call
    frame = calls.ReplayFrame
    for boundary in boundaries:
        object.__setattr__(boundary, name, timed(getattr(boundary, name)))
    calls.ReplayFrame = TimedFrame
    try:
        yield clock
    finally:
        calls.ReplayFrame = frame
        for boundary in boundaries:
            object.__delattr__(boundary, name)


def own_share(samples: int, voxels: int = 25_000) -> Measurement:
    """Measure the share of our code in a step of a checkpointed MinkUNet18.

    Args:
        samples: number of steps.
        voxels: about how many voxels of the terrain are trained on.

    Raises:
        ValueError: there is no step to time.
    """
    if samples < 1:
        raise ValueError(f"A figure needs at least one sample, got {samples}.")
    workload = mink_unet(voxels)
    model, step = training_step(workload, use_checkpoint=True)
    for _ in range(2):  # these two are watched
        step()
    steps, ours = [], []
    with no_collection():
        for _ in range(samples):
            with own_time(model) as clock:
                steps.append(seconds_of(step))
            ours.append(clock.seconds)
    return Measurement(
        median_of([own / whole for own, whole in zip(ours, steps, strict=True)]),
        {
            "voxels": workload.sites,
            "step_seconds": statistics.median(steps),
            "own_seconds": statistics.median(ours),
        },
    )


OWN_SHARE = Benchmark(
    name="own-code-minkunet18",
    group="quick",
    unit="ratio",
    doc="time inside our checkpointing code over step time, MinkUNet18 on 25 000 voxels",
    run=own_share,
    samples=7,
    at_most=0.005,
)
