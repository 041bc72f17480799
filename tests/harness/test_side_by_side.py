from __future__ import annotations

import threading
from typing import Any

import pytest

from harness.ranks import RankResult
from harness.side_by_side import run_side_by_side


class Group:
    """Ranks that are not asked anything here; how they are used is what is tested."""

    size = 1

    def __init__(self, number: int) -> None:
        self.number = number
        self.interrupted = threading.Event()

    def run(self, task: str, payload: Any, timeout: float) -> list[RankResult]:
        raise AssertionError("no task is run here")

    def interrupt(self) -> None:
        self.interrupted.set()


def test_all_groups_work_at_once_and_every_item_is_done_once() -> None:
    together = threading.Barrier(3, timeout=30.0)

    def work(item: int, group: Group) -> int:
        if item < 3:
            together.wait()
        return item

    groups = [Group(number) for number in range(3)]
    assert sorted(run_side_by_side(range(20), groups, work)) == list(range(20))  # type: ignore[arg-type]


def test_what_a_group_raises_passes_after_the_results_of_the_others() -> None:
    first_began = threading.Event()

    def work(item: int, group: Group) -> int:
        if group.number == 1:
            assert first_began.wait(30.0)
            raise LookupError("planted in group 1")
        first_began.set()
        return item

    results = []
    with pytest.raises(LookupError, match="planted in group 1"):
        for result in run_side_by_side([1, 2, 3, 4], [Group(0), Group(1)], work):  # type: ignore[arg-type]
            results.append(result)
    assert results


def test_an_interrupt_ends_what_the_other_groups_do() -> None:
    began = threading.Event()

    def work(item: int, group: Group) -> int:
        if group.number == 0:
            assert began.wait(30.0)
            raise KeyboardInterrupt
        began.set()
        assert group.interrupted.wait(30.0)
        return item

    results = []
    with pytest.raises(KeyboardInterrupt):
        for result in run_side_by_side([1, 2], [Group(0), Group(1)], work):  # type: ignore[arg-type]
            results.append(result)
    assert len(results) == 1


def test_a_reader_that_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    for _ in run_side_by_side(range(100), [Group(0), Group(1)], lambda item, group: item):
        break

    assert threading.active_count() == before
