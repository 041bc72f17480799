"""The same cases in PyTorch's own persistent test processes.

`MultiProcContinuousTest` starts one process for each rank with the first test of a class and runs
all its tests in them: no test pays for a start. A test that fails ends the class: the others are
skipped. Importing it changes global flags of torch, so the tests run in a process of their own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO

from harness.bench.benchmark import NotMeasurableError
from harness.bench.processes import environment

_TESTS = "harness.bench.torch_class_tests"


class TorchRanks:
    """Runs cases as tests of PyTorch's class, in ranks that stay. Use it as a context manager.

    Args:
        count: how many of the tiny cases are run.
    """

    def __init__(self, count: int) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", _TESTS, str(count)],
            env=environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> TorchRanks:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the processes end."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def seconds(self) -> float:
        """Run all cases once; return how long that takes.

        Raises:
            NotMeasurableError: a test fails, or PyTorch's test class needs a package that is not
                installed.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process.wait()
            self._log.seek(0)
            text = self._log.read().strip()[-500:]
            raise NotMeasurableError(
                "PyTorch's persistent test class ran no test (it needs the package `expecttest`):\n"
                + text
            )
        return float(answer)
