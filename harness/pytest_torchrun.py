"""What the pytest plugin does under torchrun.

Every rank collects the tests. Where one of them uses the ranks of the lab, rank 0 alone runs the
tests, all ranks run the cases that these ask for, and every rank ends with rank 0's exit status.
Other sessions are left alone: each rank runs their tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from harness.ranks.launch import RanksLostError, current_leader, set_leader, take_launch
from harness.termination import interrupt_when_terminated

_FIXTURE = "rank_pool"
_RANKS_LOST = 3
_STATUS = pytest.StashKey[int]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Lead the other ranks, or follow rank 0 in place of running tests."""
    if not any(_FIXTURE in getattr(item, "fixturenames", ()) for item in session.items):
        return None
    launch = take_launch()
    if launch is None:
        return None
    from harness.ranks.control import ControlLostError
    from harness.ranks.member import Member
    from harness.ranks.torchrun import Leader

    member = Member(launch, leads=launch.rank == 0)
    if launch.rank == 0:
        interrupt_when_terminated()
        set_leader(Leader(member))
        return None
    _write_no_junit(session.config)
    try:
        session.config.stash[_STATUS] = member.follow()
    except ControlLostError:
        session.config.stash[_STATUS] = _RANKS_LOST
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """End the session where the ranks are lost: torchrun may start them again."""
    try:
        yield
    except RanksLostError as error:
        pytest.exit(f"ranks were lost: {error}", _RANKS_LOST)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """End all ranks with one exit status."""
    session.exitstatus = session.config.stash.get(_STATUS, exitstatus)
    leader = current_leader()
    if leader is not None:
        set_leader(None)
        leader.end(int(exitstatus))


def _write_no_junit(config: pytest.Config) -> None:
    """Leave the file that ``--junitxml`` names to rank 0."""
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "LogXML":
            plugin.logfile = os.devnull
