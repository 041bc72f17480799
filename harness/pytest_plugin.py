"""Pytest fixtures that run cases on ranks kept alive for a whole worker.

Register it with ``pytest_plugins = ["harness.pytest_plugin"]``. Under ``pytest -n`` each worker
has ranks of its own, started on first use and stopped when the worker ends. Under
``torchrun ... -m pytest`` rank 0 collects and runs the tests, and all ranks that torchrun started
run the cases that the tests ask for; every rank ends with rank 0's exit status.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from harness.arms import arm_named
from harness.ranks import Ranks
from harness.ranks.launch import RanksLostError, open_groups, resolve_size, set_leader, take_launch
from harness.report.terminal import finding_text
from harness.row import Row
from harness.runner import RunOptions, run_case
from harness.termination import interrupt_when_terminated
from matrix.case import Case

RANKS = 2
"""Number of local ranks of the pool."""

_RANKS_LOST = 3
_LEADER = pytest.StashKey[Any]()  # a Leader, whose module imports torch
_STATUS = pytest.StashKey[int]()


class CheckCase(Protocol):
    """Runs a case and fails the test where it is not as expected."""

    def __call__(self, case: Case, *, arm: str = "checkpointed", seed: int = 0) -> Row:
        """Run ``case`` with a named arm and seed; return its row."""


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[Ranks]:
    """Two local ranks, or those that torchrun started."""
    size = resolve_size(None)
    with open_groups(size, size, "gloo") as (group,):
        yield group


@pytest.fixture
def check_case(rank_pool: Ranks) -> CheckCase:
    """Return a function that runs a case on the ranks and fails where it is not as expected."""

    def check(case: Case, *, arm: str = "checkpointed", seed: int = 0) -> Row:
        try:
            row = run_case(case, rank_pool, RunOptions(arm=arm_named(arm), seed=seed))
        except RanksLostError as error:
            pytest.exit(f"ranks were lost: {error}", _RANKS_LOST)
        if not row.passed:
            texts = [finding_text(finding, everything=True) for finding in row.findings]
            headline = f"{row.outcome}: {row.case}"
            replay = f"replay: {row.replay_command}"
            pytest.fail("\n".join([headline, *texts, replay]), pytrace=False)
        return row

    return check


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Under torchrun: lead the other ranks, or follow rank 0 instead of running tests."""
    return _take_place(config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Do so here where the plugin was registered by a test module, after the start."""
    status = _take_place(session.config)
    if status is None:
        return None
    session.config.stash[_STATUS] = status
    return True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End all ranks with one exit status."""
    session.exitstatus = session.config.stash.get(_STATUS, exitstatus)
    leader = session.config.stash.get(_LEADER, None)
    if leader is not None:
        set_leader(None)
        leader.end(int(exitstatus))


def _take_place(config: pytest.Config) -> int | None:
    """Return the exit status of a rank that followed; None on rank 0 and without torchrun."""
    launch = take_launch()
    if launch is None:
        return None
    from harness.ranks.control import ControlLostError
    from harness.ranks.member import Member
    from harness.ranks.torchrun import Leader

    member = Member(launch, leads=launch.rank == 0)
    if launch.rank == 0:
        interrupt_when_terminated()
        config.stash[_LEADER] = Leader(member)
        set_leader(config.stash[_LEADER])
        return None
    with contextlib.suppress(ControlLostError):
        return member.follow()
    return _RANKS_LOST
