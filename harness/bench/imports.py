"""What `import wcn_ckpt` adds to `import torch`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from harness.bench.benchmark import Benchmark, Measurement, NotMeasurableError
from harness.bench.estimate import median_of, quantiles_of
from harness.bench.processes import environment

_SCRIPT = """\
import json, time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import wcn_ckpt
end = time.perf_counter()
print(json.dumps([middle - start, end - middle]))
"""


def import_time(samples: int) -> Measurement:
    """Time both imports in fresh processes, one after the other in each.

    Args:
        samples: number of processes, after one that fills the caches of the file system.

    Raises:
        NotMeasurableError: a process fails.
    """
    if samples < 1:
        raise ValueError(f"A figure needs at least one sample, got {samples}.")
    times = [_times() for _ in range(samples + 1)][1:]
    added = [1e3 * ours for _, ours in times]
    return Measurement(
        median_of(added),
        {
            "torch_ms": 1e3 * statistics.median(torch for torch, _ in times),
            "milliseconds": quantiles_of(added),
        },
    )


def _times() -> tuple[float, float]:
    command = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise NotMeasurableError(f"importing failed: {done.stderr.strip()[-500:]}")
    torch, ours = json.loads(done.stdout)
    return float(torch), float(ours)


IMPORT_TIME = Benchmark(
    name="import-time",
    group="quick",
    unit="ms",
    doc="what `import wcn_ckpt` takes after `import torch`, in fresh processes",
    run=import_time,
    samples=15,
    at_most=60.0,
)
