from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.ranks import RankPool, RankStartError

TASKS = f"{Path(__file__).parent}/faulty_arms.py"


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2, grace=2.0) as pool:
        yield pool


def statuses(pool: RankPool, task: str, timeout: float = 30.0) -> list[str]:
    return [result.status for result in pool.run(f"{TASKS}:{task}", None, timeout)]


def check_usable(pool: RankPool) -> None:
    results = pool.run(f"{TASKS}:echo", "hello", 30.0)

    assert [result.value for result in results] == [(0, "hello", 2.0), (1, "hello", 2.0)]


def exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(processes: list[int], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(exists, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(exists, processes))


def test_ranks_persist_between_tasks(pool: RankPool) -> None:
    check_usable(pool)
    before = pool.processes
    check_usable(pool)

    assert pool.processes == before


def test_a_rank_that_raises_wakes_the_one_that_waits_for_it(pool: RankPool) -> None:
    check_usable(pool)
    before = pool.processes
    start = time.monotonic()

    waiting, raising = pool.run(f"{TASKS}:raise_on_rank_1", None, 60.0)

    assert time.monotonic() - start < 30.0
    assert (waiting.status, raising.status) == ("raised", "raised")
    assert raising.error == "ArithmeticError: planted on rank 1"
    assert "raise_on_rank_1" in raising.detail
    assert raising.at < waiting.at
    assert "gloo" in waiting.error
    check_usable(pool)
    assert pool.processes == before


def test_ranks_that_all_raise_stay(pool: RankPool) -> None:
    check_usable(pool)
    before = pool.processes

    assert statuses(pool, "raise_everywhere") == ["raised", "raised"]
    check_usable(pool)
    assert pool.processes == before


def test_a_killed_rank_is_reported_and_all_ranks_are_replaced(pool: RankPool) -> None:
    check_usable(pool)
    before = pool.processes

    _, killed = pool.run(f"{TASKS}:die_on_rank_1", None, 60.0)

    assert (killed.status, killed.error) == ("died", "was killed by SIGKILL")
    assert wait_until_gone(before)
    check_usable(pool)


def test_a_hang_is_reported_with_the_stacks_of_every_rank(pool: RankPool) -> None:
    check_usable(pool)

    waiting, hanging = pool.run(f"{TASKS}:hang_on_rank_1", None, 1.0)

    assert (waiting.status, hanging.status) == ("stalled", "stalled")
    assert "in hang_on_rank_1" in hanging.detail
    assert "all_reduce" in waiting.detail
    check_usable(pool)


def test_a_rank_that_died_between_tasks_is_replaced_before_the_next(pool: RankPool) -> None:
    check_usable(pool)
    os.kill(pool.processes[1], signal.SIGKILL)
    # Wait until it is quite gone, its threads too, and leave it to the pool to notice.
    os.waitid(os.P_PID, pool.processes[1], os.WEXITED | os.WNOWAIT)

    check_usable(pool)


def test_an_unknown_task_is_an_error_of_every_rank(pool: RankPool) -> None:
    results = pool.run(f"{TASKS}:nothing", None, 30.0)

    assert all("no attribute 'nothing'" in result.error for result in results)
    check_usable(pool)


def test_what_a_rank_imported_is_no_work_for_its_collections(pool: RankPool) -> None:
    results = pool.run(f"{TASKS}:count_frozen", None, 30.0)

    assert all(result.value > 100_000 for result in results)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_kernels_for_ever_more_shapes_take_no_more_memory(pool: RankPool) -> None:
    for result in pool.run(f"{TASKS}:memory_of_bfloat16_kernels", None, 60.0):
        middle, end = result.value
        assert end - middle < 50  # with the caches that oneDNN and torch have by default: 200


def test_tensors_pass_both_ways_by_value(pool: RankPool) -> None:
    sent = torch.arange(5.0)

    results = pool.run(f"{TASKS}:return_a_tensor", sent, 30.0)

    for result in results:
        echoed, made = result.value
        assert torch.equal(echoed, sent) and torch.equal(made, torch.full((3,), result.rank))
    check_usable(pool)


@pytest.mark.parametrize("task", ["return_a_lambda", "return_an_unknown_class"])
def test_a_value_that_cannot_be_sent_is_an_error_of_the_task(pool: RankPool, task: str) -> None:
    assert statuses(pool, task) == ["raised", "raised"]
    check_usable(pool)


def test_closing_ends_the_ranks_and_can_be_repeated() -> None:
    pool = RankPool(1)
    pool.run(f"{TASKS}:raise_everywhere", None, 30.0)
    processes = pool.processes

    pool.close()
    pool.close()

    assert not any(map(exists, processes))
    with pytest.raises(RuntimeError, match="the pool is closed"):
        pool.run(f"{TASKS}:echo", None, 30.0)


def test_ranks_that_cannot_start_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with RankPool(1) as pool:
        for _ in range(2):
            with pytest.raises(RankStartError, match="no-such-interface"):
                pool.run(f"{TASKS}:echo", None, 30.0)


def test_a_pool_has_at_least_one_rank() -> None:
    with pytest.raises(ValueError, match="at least one rank, got 0"):
        RankPool(0)


def test_no_rank_outlives_a_killed_parent() -> None:
    program = (
        "import sys\n"
        "from harness.ranks import RankPool\n"
        "pool = RankPool(2)\n"
        f"pool.run({TASKS + ':echo'!r}, None, 30.0)\n"
        "print(*pool.processes, flush=True)\n"
        f"pool.run({TASKS + ':hang_everywhere'!r}, None, 600.0)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        processes = [int(word) for word in parent.stdout.readline().split()]
        assert len(processes) == 2
        assert all(map(exists, processes))
        parent.kill()

    assert wait_until_gone(processes)
