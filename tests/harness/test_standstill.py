"""A machine that stands still, as a laptop that sleeps, makes no task one that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.ranks import deadline
from harness.ranks.deadline import Deadline

TASKS = f"{Path(__file__).parent}/dying_tasks.py"
LAB = f"""
from harness.ranks import RankPool

with RankPool(1) as pool:
    pool.run("{TASKS}:pause", 0.0, 60.0)
    print(pool.processes[0], flush=True)
    print(pool.run("{TASKS}:pause", 1.0, 2.0)[0].status, flush=True)
"""


def test_a_rank_is_not_stalled_where_all_was_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", LAB], stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        processes = [lab.pid, int(lab.stdout.readline())]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        time.sleep(3.5)
        for process in processes:
            os.kill(process, signal.SIGCONT)
            time.sleep(0.3)  # the lab looks first
        assert lab.stdout.readline() == "returned\n"


def test_a_wait_that_takes_too_long_puts_the_deadline_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_STANDSTILL_SECONDS", 0.1)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        time.sleep(seconds + (0.4 if len(waits) == 1 else 0.0))
        return len(waits) == 2

    assert Deadline(0.2).wait(wait)


def test_a_deadline_passes_and_can_be_brought_forward() -> None:
    limit = Deadline(60.0)
    limit.bring_forward(0.05)
    limit.bring_forward(30.0)

    begun = time.monotonic()
    assert not limit.wait(lambda seconds: time.sleep(seconds))
    assert limit.left == 0 and time.monotonic() - begun < 10
