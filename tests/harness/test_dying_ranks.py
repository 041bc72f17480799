"""However a rank hangs or ends: the right outcome, each rank's stack or signal, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.arms import arm_named
from harness.ranks import RankPool
from harness.runner import RunOptions, run_case
from harness.verdict import CaseVerdict, combine
from matrix.case import parse_case
from tests.harness.processes import alive, listening_addresses, of_group, wait_until

HERE = Path(__file__).parent
TASKS = f"{HERE}/dying_tasks.py"
ECHO = f"{HERE}/faulty_arms.py:echo"
HANGS = {
    "sleep in C with the lock": "in _sleep_in_c_with_the_lock",
    "stop": "gave no stacks: the process is stopped",
}
ENDS = {
    "leave in Python": "exited with status 9",
    "killed with children": "was killed by SIGKILL",
    "killed by a real-time signal": f"was killed by signal {signal.SIGRTMIN + 5}",
    "read at address zero": "was killed by SIGSEGV",
}


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """One rank, since it is replaced in almost every test."""
    with RankPool(1) as pool:
        yield pool


def run(pool: RankPool, action: str, limit: float) -> CaseVerdict:
    return combine(pool.run(f"{TASKS}:act", action, limit))


def folders(temporary: Path) -> list[Path]:
    """Return the lab's temporary folders; torch's own caches are not its."""
    return list(temporary.glob("ckpt-lab-*"))


def check_usable(pool: RankPool) -> None:
    assert [result.value for result in pool.run(ECHO, 3, 60.0)] == [(0, 3, 1.0)]


@pytest.mark.parametrize("action", HANGS)
def test_a_rank_that_hangs(pool: RankPool, action: str) -> None:
    check_usable(pool)
    before = pool.processes

    outcome, findings, _ = run(pool, action, 0.5)

    assert outcome == "hung"
    (finding,) = findings
    assert HANGS[action] in str(finding.got)
    assert not any(map(alive, before))


@pytest.mark.parametrize("action", ENDS)
def test_a_rank_that_ends(pool: RankPool, action: str) -> None:
    check_usable(pool)
    before = pool.processes

    outcome, findings, _ = run(pool, action, 60.0)

    assert outcome == "crashed"
    (finding,) = findings
    assert ENDS[action] in finding.cause
    if action in ("leave in Python", "read at address zero"):
        assert "dying_tasks.py" in str(finding.got), "the rank's log has the stack"
    assert wait_until(lambda: not of_group(before)), "what the rank started ended with it"


def test_a_rank_that_ran_out_of_memory_is_replaced(pool: RankPool) -> None:
    check_usable(pool)
    before = pool.processes

    outcome, findings, _ = run(pool, "out of memory", 60.0)

    assert outcome == "error"
    assert "MemoryError" in str(findings[0].got)
    assert not set(before) & set(pool.processes)
    check_usable(pool)


def test_a_rank_that_raises_under_ddp_wakes_the_other(rank_pool: RankPool) -> None:
    arm = arm_named(f"{HERE}/faulty_arms.py:raise_in_forward")
    case = parse_case("readme,wrapper=ddp")

    row = run_case(case, rank_pool, RunOptions(arm=arm))

    assert [finding.rank for finding in row.findings] == [1, 0]
    assert row.findings[1].path == "exception", "one that still waits has no exception to report"


def test_ranks_listen_on_the_loopback_alone(rank_pool: RankPool) -> None:
    rank_pool.run(ECHO, None, 60.0)

    assert [listening_addresses(rank) for rank in rank_pool.processes] == [{"0100007F"}] * 2


def test_nothing_outlives_a_killed_lab(tmp_path: Path) -> None:
    """Where every rank hangs in C, holds the interpreter's lock and has a child."""
    program = (
        "from harness.ranks import RankPool\n"
        "pool = RankPool(1)\n"
        f"pool.run({ECHO!r}, None, 60.0)\n"
        "print(*pool.processes, flush=True)\n"
        f"pool.run({TASKS + ':hang_in_c_with_a_child'!r}, None, 600.0)\n"
    )
    lab = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with lab:
        assert lab.stdout is not None
        ranks = [int(word) for word in lab.stdout.readline().split()]
        assert wait_until(lambda: len(of_group(ranks)) == 2), "the rank has started a child"
        assert folders(tmp_path)
        lab.kill()

    assert wait_until(lambda: not of_group(ranks))
    assert wait_until(lambda: not folders(tmp_path))


def test_a_closed_pool_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with RankPool(1) as pool:
        assert folders(tmp_path)
        pool.run(ECHO, None, 60.0)

    assert folders(tmp_path) == []
