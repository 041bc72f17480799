"""How fast the lab runs cases, over the least that a comparison of two arms can do."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from harness.arms import arm_named
from harness.bench.paired import Ratio
from harness.job import make_job
from harness.ranks import RankPool
from harness.runner import RunOptions, run_case
from harness.store import Store
from matrix.case import Case
from matrix.subjects import subject_named
from matrix.suites import select, suite_named

BARE_LOOP = "harness.bench.bare_loop:run_jobs"
_SECONDS = 600.0


@dataclass(frozen=True)
class LabRate:
    """Time per case of the lab, results on disk, over a bare loop in the same two ranks.

    Args:
        name: its name on the command line and in the output.
        subject: what is tried.
        suite: the suite whose cases of the subject are run.
        most: the largest number of pairs that are timed; each runs all cases twice.
        limit: the ratio that the project sets itself: the lab keeps 0.7 of the bare rate.
    """

    name: str = "lab-rate"
    subject: str = "readme"
    suite: str = "smoke"
    most: int = 10
    limit: float = 1 / 0.7

    def measure(self, pairs: int) -> Ratio:
        """Time both in interleaved pairs, each over all cases of the subject in the suite.

        Args:
            pairs: how many pairs to time, at most ``most`` of them.

        Raises:
            ValueError: there is no pair to time.
            RuntimeError: if a case is not as expected, or the bare loop fails.
        """
        if pairs < 1:
            raise ValueError(f"A ratio needs at least one pair, got {pairs}.")
        subject = subject_named(self.subject)
        cases = list(select(suite_named(self.suite), subjects=[subject]).cases)
        times: list[tuple[float, float]] = []
        with tempfile.TemporaryDirectory() as folder, RankPool(2) as pool:
            with Store(Path(folder), {}) as store:
                for index in range(min(pairs, self.most) + 1):
                    if index % 2:
                        pair = (_lab_seconds(cases, pool, store), _bare_seconds(cases, pool))
                    else:
                        pair = (_bare_seconds(cases, pool), _lab_seconds(cases, pool, store))[::-1]
                    times.append(pair)
        # The first pair warms up: it makes the inputs.
        return _ratio([(lab / len(cases), bare / len(cases)) for lab, bare in times[1:]])


def _lab_seconds(cases: list[Case], pool: RankPool, store: Store) -> float:
    options = RunOptions(arm=arm_named("checkpointed"))
    start = time.monotonic()
    for case in cases:
        row = run_case(case, pool, options)
        store.append(row)
        if not row.passed:
            raise RuntimeError(f"{row.case} is {row.outcome}; see: {row.replay_command}")
    return time.monotonic() - start


def _bare_seconds(cases: list[Case], pool: RankPool) -> float:
    arm = arm_named("checkpointed").install
    jobs = [make_job(case, arm=arm, seed=0) for case in cases]
    results = pool.run(BARE_LOOP, jobs, _SECONDS)
    for result in results:
        if result.status != "returned":
            raise RuntimeError(f"the bare loop {result.status} on rank {result.rank}")
    return max(float(result.value) for result in results)


def _ratio(times: list[tuple[float, float]]) -> Ratio:
    ratios = sorted(lab / bare for lab, bare in times)
    half_width = 1.96 * sqrt(len(ratios)) / 2
    return Ratio(
        statistics.median(ratios),
        ratios[max(0, int(len(ratios) / 2 - half_width))],
        ratios[min(len(ratios) - 1, int(len(ratios) / 2 + half_width) + 1)],
        statistics.median(lab for lab, _ in times),
        statistics.median(bare for _, bare in times),
        len(ratios),
    )
