"""One case in ranks that are started for it and end with it, as most test suites do."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch
from torch.multiprocessing.spawn import spawn

from harness.bench.lab_cases import jobs_of
from harness.job import Job
from harness.ranks.context import RankContext
from matrix.case import Case

RANKS = 2


def spawned_seconds(case: Case) -> float:
    """Start two processes, compare the arms of a case in them, wait for their end.

    Args:
        case: the case.

    Raises:
        torch.multiprocessing.ProcessRaisedException: a rank fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        arguments = (RANKS, jobs_of([case]), Path(folder))
        spawn(run_alone, arguments, nprocs=RANKS)  # type: ignore[no-untyped-call]  # torch leaves it so
        return time.monotonic() - start


def run_alone(rank: int, size: int, jobs: list[Job], folder: Path) -> None:
    """Form a group with the other ranks, run jobs, and leave it.

    Args:
        rank: this rank.
        size: number of ranks.
        jobs: what to run.
        folder: where the ranks meet.
    """
    from harness.bench.bare_loop import run_jobs

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    context = RankContext(rank, size, folder, "gloo")
    context.join(0)
    run_jobs(jobs, context)
    context.leave()
