"""How the time of a training step grows with the number of voxels, and what memory it needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from math import log
from typing import Any

import torch

from harness.bench.benchmark import Benchmark, Measurement, NotMeasurableError
from harness.bench.estimate import exact, median_of, slope_of
from harness.bench.machine import peak_memory
from harness.bench.paired import no_collection, seconds_of
from harness.bench.processes import environment
from harness.bench.workloads import mink_unet, training_step

VOXELS = (25_000, 50_000, 100_000, 200_000)
CLOUDS = 4


def growth_exponent(
    samples: int, voxels: Sequence[int] = VOXELS, clouds: int = CLOUDS
) -> Measurement:
    """Fit the exponent of step time over voxels, checkpointed MinkUNet18.

    Each round trains one step of every size, in turn; its slope of log time over log voxels is one
    sample.

    Args:
        samples: number of rounds.
        voxels: about how many voxels there are.
        clouds: number of crops of the terrain that they are spread over.

    Raises:
        ValueError: there is no round.
    """
    if samples < 1:
        raise ValueError(f"A figure needs at least one sample, got {samples}.")
    workloads = [mink_unet(count, clouds) for count in voxels]
    sites = [workload.sites for workload in workloads]
    steps = [training_step(workload, use_checkpoint=True)[1] for workload in workloads]
    for step in steps:
        step()
    with no_collection():
        rounds = [[seconds_of(step) for step in steps] for _ in range(samples)]
    slopes = [slope_of(list(map(log, sites)), list(map(log, times))).value for times in rounds]
    return Measurement(
        median_of(slopes),
        {
            "voxels": sites,
            "seconds": [median_of(times).value for times in zip(*rounds, strict=True)],
            "threads": torch.get_num_threads(),
        },
    )


def peak_of_step(samples: int = 1, voxels: int = VOXELS[-1], clouds: int = CLOUDS) -> Measurement:
    """Measure the peak resident size of a process that trains one step.

    Args:
        samples: number of processes; the largest counts.
        voxels: about how many voxels there are.
        clouds: number of crops of the terrain that they are spread over.

    Raises:
        NotMeasurableError: a process fails.
    """
    peaks = [_child(voxels, clouds) for _ in range(samples)]
    largest = max(peaks, key=lambda peak: float(peak["peak_mib"]))
    return Measurement(exact(largest["peak_mib"] / 1024), largest)


def _child(voxels: int, clouds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "harness.bench.growth", str(voxels), str(clouds)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise NotMeasurableError(
            f"a step on {voxels} voxels ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def main() -> None:
    """Train one step in this process; print what it took as JSON.

    `python -m harness.bench.growth VOXELS CLOUDS`.
    """
    voxels, clouds = map(int, sys.argv[1:])
    workload = mink_unet(voxels, clouds)
    _, step = training_step(workload, use_checkpoint=True)
    before = peak_memory()
    seconds = seconds_of(step)
    seen = {
        "voxels": workload.sites,
        "peak_mib": peak_memory(),
        "peak_before_mib": before,
        "first_step_seconds": seconds,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(seen))


GROWTH = (
    Benchmark(
        name="growth-exponent",
        group="long",
        unit="exponent",
        doc="growth exponent of MinkUNet18 step time, 25 000 to 200 000 voxels",
        run=growth_exponent,
        samples=6,
        at_most=1.1,
    ),
    Benchmark(
        name="peak-memory-200k",
        group="long",
        unit="GiB",
        doc="peak resident size of a MinkUNet18 step on 200 000 voxels, in a process of its own",
        run=peak_of_step,
        samples=1,
        at_most=8.0,
    ),
)

if __name__ == "__main__":
    main()
