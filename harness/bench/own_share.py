"""How much of a training step is spent in our own checkpointing code.

The difference between two whole steps is far above the cost in question, so the time is counted
where it is spent: a profile hook switches a clock at each Python call and return, and what runs
directly in a function of `wcn_ckpt.checkpointing`, with the C functions that it calls, is ours.
The work of a block, torch's checkpoint and autograd are called from there and are not. The hook
itself slows what it watches, so the share is an upper bound. Steps that are timed run without it.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from harness.bench.benchmark import Benchmark, Measurement
from harness.bench.estimate import median_of
from harness.bench.paired import no_collection, seconds_of
from harness.bench.workloads import mink_unet, training_step
from wcn_ckpt import checkpointing

OURS = str(Path(checkpointing.__file__).parent)


def own_share(samples: int, voxels: int = 25_000) -> Measurement:
    """Measure the share of our code in a step of a checkpointed MinkUNet18.

    Args:
        samples: pairs of a plain step and a watched one.
        voxels: about how many voxels of the terrain are trained on.
    """
    if samples < 1:
        raise ValueError(f"A figure needs at least one sample, got {samples}.")
    workload = mink_unet(voxels)
    step = training_step(workload, use_checkpoint=True)
    step()
    steps, ours = [], []
    with no_collection():
        for _ in range(samples):
            steps.append(seconds_of(step))
            ours.append(seconds_inside(OURS, step))
    return Measurement(
        median_of([own / whole for own, whole in zip(ours, steps, strict=True)]),
        {
            "voxels": workload.sites,
            "step_seconds": statistics.median(steps),
            "own_seconds": statistics.median(ours),
        },
    )


def seconds_inside(folder: str, call: Callable[[], Any]) -> float:
    """Make a call; return the time spent directly in Python functions of some files.

    Args:
        folder: where those files are. Functions elsewhere that they call do not count, C functions
            do.
        call: what to call; in this thread alone.
    """
    clock = time.perf_counter
    owners = [False]
    total, since = 0.0, clock()

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal total, since
        if event not in ("call", "return"):
            return
        if owners[-1]:
            total += clock() - since
        if event == "call":
            owners.append(frame.f_code.co_filename.startswith(folder))
        elif len(owners) > 1:  # the frame that installed the hook returns without a call
            owners.pop()
        since = clock()

    sys.setprofile(hook)
    try:
        call()
    finally:
        sys.setprofile(None)
    return total


OWN_SHARE = Benchmark(
    name="own-code-minkunet18",
    group="quick",
    unit="ratio",
    doc="time inside our checkpointing code over step time, MinkUNet18 on 25 000 voxels",
    run=own_share,
    samples=7,
    at_most=0.005,
)
