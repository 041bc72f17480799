"""Pytest fixtures that run cases on ranks kept alive for a whole worker.

Register it with ``pytest_plugins = ["harness.pytest_plugin"]``. Under ``pytest -n`` each worker
has ranks of its own, started on first use and stopped when the worker ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pytest

from harness.arms import arm_named
from harness.ranks import RankPool
from harness.report.terminal import finding_text
from harness.row import Row
from harness.runner import RunOptions, run_case
from matrix.case import Case

RANKS = 2
"""Number of ranks of the pool."""


class CheckCase(Protocol):
    """Runs a case and fails the test where it is not as expected."""

    def __call__(self, case: Case, *, arm: str = "checkpointed", seed: int = 0) -> Row:
        """Run ``case`` with a named arm and seed; return its row."""


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """Two local ranks."""
    with RankPool(RANKS) as pool:
        yield pool


@pytest.fixture
def check_case(rank_pool: RankPool) -> CheckCase:
    """Return a function that runs a case on the ranks and fails where it is not as expected."""

    def check(case: Case, *, arm: str = "checkpointed", seed: int = 0) -> Row:
        row = run_case(case, rank_pool, RunOptions(arm=arm_named(arm), seed=seed))
        if not row.passed:
            texts = [finding_text(finding, everything=True) for finding in row.findings]
            headline = f"{row.outcome}: {row.case}"
            replay = f"replay: {row.replay_command}"
            pytest.fail("\n".join([headline, *texts, replay]), pytrace=False)
        return row

    return check
