"""Runs things on groups of ranks side by side."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from harness.ranks.launch import Ranks

Item = TypeVar("Item")
Result = TypeVar("Result")

_JOIN_SECONDS = 0.2


def run_side_by_side(
    items: Sequence[Item], groups: Sequence[Ranks], run: Callable[[Item, Ranks], Result]
) -> Iterator[Result]:
    """Give each group the next item as soon as it is free.

    The first group is served by the calling thread, the others by a thread each. Where one of them
    raises, what the others have in hand ends first, and is yielded before the exception passes.

    Args:
        items: What is to be run, in the order in which it is begun.
        groups: The groups of ranks.
        run: Runs one item on one group.

    Yields:
        Results as they come.
    """
    if len(groups) == 1:
        for item in items:
            yield run(item, groups[0])
        return
    side = _SideBySide(items, groups, run)
    try:
        try:
            yield from side.results()
        except Exception:
            side.end()
            yield from side.arrived()
            raise
        except KeyboardInterrupt:
            side.end(interrupt=True)
            yield from side.arrived()
            raise
    finally:
        side.end()


class _SideBySide(Generic[Item, Result]):
    def __init__(
        self, items: Sequence[Item], groups: Sequence[Ranks], run: Callable[[Item, Ranks], Result]
    ) -> None:
        self._items = deque(items)
        self._groups = groups
        self._run = run
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._failures: list[BaseException] = []
        self._news = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._serve, args=(group,), name=f"group {number}")
            for number, group in enumerate(groups[1:], 1)
        ]
        for thread in self._threads:
            thread.start()

    def results(self) -> Iterator[Result]:
        for item in self._taken():
            yield self._run(item, self._groups[0])
            yield from self.arrived()
            self._raise_failure()
        for thread in self._threads:
            while thread.is_alive():
                self._news.acquire(timeout=_JOIN_SECONDS)
                yield from self.arrived()
                self._raise_failure()
        yield from self.arrived()
        self._raise_failure()

    def arrived(self) -> Iterator[Result]:
        while not self._results.empty():
            yield self._results.get()

    def end(self, *, interrupt: bool = False) -> None:
        self._items.clear()
        for thread, group in zip(self._threads, self._groups[1:], strict=True):
            while thread.is_alive():
                if interrupt:
                    group.interrupt()
                thread.join(_JOIN_SECONDS)

    def _taken(self) -> Iterator[Item]:
        while True:
            try:
                yield self._items.popleft()
            except IndexError:
                return

    def _serve(self, group: Ranks) -> None:
        try:
            for item in self._taken():
                self._results.put(self._run(item, group))
                self._news.release()
        except BaseException as error:  # it is raised again where the results are read
            self._failures.append(error)
        self._news.release()

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]
