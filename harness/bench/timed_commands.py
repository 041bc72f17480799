"""How long whole commands take, from a cold start to their end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import harness
from harness.bench.benchmark import Benchmark, Measurement, NotMeasurableError
from harness.bench.estimate import median_of
from harness.bench.processes import environment

_REPORT = "report.html"


def smoke(samples: int, *narrowed: str) -> Measurement:
    """Time `ckpt-lab run --suite smoke` in a fresh process, until its report lies there.

    Args:
        samples: number of runs.
        *narrowed: further options of the command.

    Raises:
        NotMeasurableError: a run is not as expected, or leaves no report.
    """
    seconds = []
    for _ in range(_checked(samples)):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out")
            command = ["-m", "harness", "run", "--suite", "smoke", "--out", str(out), *narrowed]
            seconds.append(_timed(command, Path(folder)))
            if not (out / _REPORT).is_file():
                raise NotMeasurableError(f"the run left no {_REPORT}")
    return Measurement(median_of(seconds), {"seconds": seconds})


def test_suite(samples: int, *narrowed: str) -> Measurement:
    """Time `pytest -n auto` on all tests of a checkout, each worker with one thread.

    Args:
        samples: number of runs.
        *narrowed: further arguments of pytest.

    Raises:
        NotMeasurableError: there are no tests here, or they fail.
    """
    root = Path(harness.__file__).parent.parent
    if not (root / "tests").is_dir():
        raise NotMeasurableError("the tests are in a checkout of the project, not in its wheel")
    command = ["-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *narrowed]
    seconds = [_timed(command, root) for _ in range(_checked(samples))]
    return Measurement(median_of(seconds), {"seconds": seconds, "cores": os.cpu_count()})


def _checked(samples: int) -> int:
    if samples < 1:
        raise ValueError(f"A figure needs at least one sample, got {samples}.")
    return samples


def _timed(command: Sequence[str], folder: Path) -> float:
    variables = environment(OMP_NUM_THREADS="1")
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=variables, capture_output=True, text=True
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-1000:]
        raise NotMeasurableError(
            f"`python {' '.join(command)}` ended with {done.returncode}:\n{output}"
        )
    return seconds


COMMANDS = (
    Benchmark(
        name="smoke-from-cold",
        group="quick",
        unit="s",
        doc="`ckpt-lab run --suite smoke` in a fresh process, from its start to the report",
        run=smoke,
        samples=1,
        at_most=60.0,
    ),
    Benchmark(
        name="test-suite",
        group="long",
        unit="s",
        doc="`pytest -n auto` on the whole test suite",
        run=test_suite,
        samples=1,
        at_most=480.0,
    ),
)
