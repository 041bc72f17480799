"""A rank that leaves its group keeps nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LEAVING = """
import os, sys
from pathlib import Path
import torch
from torch.nn.parallel import DistributedDataParallel
from harness.ranks.context import RankContext

def threads():
    tasks = Path("/proc/self/task")
    return sorted((task / "comm").read_text().strip() for task in tasks.iterdir())

torch.set_num_threads(1)
before = threads()
context = RankContext(0, 1, Path(sys.argv[1]), "gloo")
for generation in range(2):
    context.join(generation)
    assert threads() != before
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(3, 2)).sum().backward()
    del model
    context.leave()
    assert threads() == before, threads()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_group_left_after_ddp_leaves_no_thread(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, str(tmp_path)], capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, done.stderr
