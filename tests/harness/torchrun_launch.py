"""Starts torchrun as a user does, and sees to it that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.processes import alive

ROOT = Path(__file__).parents[2]
LIMIT = 240.0
"""Seconds; far above what any of these runs takes."""


@contextmanager
def torchrun(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start an agent; end it and its ranks on the way out."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})},
    )
    try:
        yield process
    finally:
        ranks = ranks_of(process)
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT)
        for rank in filter(alive, ranks):
            os.kill(rank, signal.SIGKILL)
        if process.stdout is not None:
            process.stdout.close()


def run_torchrun(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Run torchrun to its end; return its exit status and what it printed."""
    with torchrun(*arguments, cwd=cwd) as process:
        output, _ = process.communicate(timeout=LIMIT)
        return process.returncode, output


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of an agent's ranks."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in children.split()]
