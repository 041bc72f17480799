"""Leads ranks that torchrun started, from rank 0.

The leader orders tasks through torch's store, and each rank stores its result there. Where a rank
cannot be brought back, the leader gives up with a ``RanksLostError``: the ranks end, torchrun's
agent starts them again if it may, and the next leader goes on. What the last one had in flight is
in the agent's store, so a task that takes ranks down is not run a second time.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from harness.ranks.control import Control, ControlLostError
from harness.ranks.launch import Launch, RanksLostError, check_group_size, set_leader
from harness.ranks.member import Member
from harness.ranks.messages import pack
from harness.ranks.orders import (
    GRACE_SECONDS,
    JOIN_SECONDS,
    Layout,
    Order,
    attempt_key,
    failed_key,
    free_key,
    place_of,
    result_key,
)
from harness.ranks.pool import RankResult, RankStartError
from harness.ranks.reports import ended_by_itself, ended_by_torchrun, held_in_c, reported

LOST_STATUS = 3
"""Exit status of ranks that lost each other."""

INTERRUPTED_STATUS = 130
"""Exit status of a program that was interrupted."""

_START_SECONDS = 300.0
_POLL_SECONDS = 0.25
_LEFT_SECONDS = 3.0
_BYE_SECONDS = 5.0


class _Broken(NamedTuple):
    """A task that took ranks down, with what they said about it."""

    task: str
    payload: Any
    results: list[RankResult]


class Leader:
    """Rank 0 of the ranks that torchrun started.

    Args:
        member: This process as a rank.
    """

    def __init__(self, member: Member) -> None:
        """Read what the last leader left."""
        self.launch: Launch = member.launch
        self._member = member
        self._control = member.control
        self._epoch = 0
        self._remembering = threading.Lock()
        self.lost = False
        """Whether ranks were lost: then torchrun may start them again, and there is more to do."""
        self.broken = self._read_broken()

    def note(self, name: str, value: str | None = None) -> str | None:
        """Keep a text for the leaders that follow, or return what is kept.

        Args:
            name: What it is called.
            value: The text; None to read.
        """
        key = f"note-{name}"
        if value is not None:
            self._control.put(key, value.encode())
            return value
        return self._control.get(key).decode() if self._control.has(key) else None

    @contextmanager
    def groups(self, size: int, backend: str) -> Iterator[Sequence[TorchrunGroup]]:
        """Split the ranks into groups that run side by side.

        Args:
            size: Ranks of a group.
            backend: One of :data:`harness.ranks.BACKENDS`.

        Yields:
            The groups; this process is in the first one.

        Raises:
            ValueError: If the ranks cannot be split so.
            harness.ranks.control.ControlLostError: If the store is gone.
        """
        check_group_size(self.launch.world_size, size)
        layout = Layout(size=size, backend=backend)
        self._control.put(self._key(f"layout-{self._epoch}"), pack(layout))
        self._member.enter(layout, self._epoch)
        count = self.launch.world_size // size
        groups = [TorchrunGroup(self, n, size, self._epoch, self._member) for n in range(count)]
        try:
            yield groups
        finally:
            self._epoch += 1
            with contextlib.suppress(ControlLostError):
                for group in groups:
                    group.dissolve()

    def end(self, status: int) -> None:
        """Tell all ranks to end with an exit status, and wait until they have heard it.

        From here on this process ignores SIGTERM: where the status is not 0, torchrun sends it as
        soon as one rank has ended.
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        layout = Layout(size=0, status=status)
        byes = [self._key(f"bye-{rank}") for rank in range(1, self.launch.world_size)]
        with contextlib.suppress(ControlLostError):
            self._control.put(self._key(f"layout-{self._epoch}"), pack(layout))
            deadline = time.monotonic() + _BYE_SECONDS
            while byes and not self._control.wait(byes, _POLL_SECONDS):
                if time.monotonic() > deadline or self._control.has(self._key("left")):
                    break

    def remember(self, task: str, payload: Any, results: list[RankResult]) -> None:
        """Keep a task that took ranks down from being run again after a restart.

        Raises:
            harness.ranks.control.ControlLostError: If the store is gone.
        """
        with self._remembering:
            count = int(self.note("broken") or "0")
            self._control.put(f"broken-{count}", pack((task, payload, results)))
            self.note("broken", str(count + 1))

    def say_left(self) -> None:
        """Say that this rank ends through no fault of its own."""
        self._member.say_left()

    def _read_broken(self) -> list[_Broken]:
        if self.launch.attempt:
            group = 0
            last = self.launch.attempt - 1
            while self._control.has(key := attempt_key(last, f"open-{group}")):
                self._settle(last, *pickle.loads(self._control.get(key)))
                group += 1
        count = int(self.note("broken") or "0")
        return [
            _Broken(*pickle.loads(self._control.get(f"broken-{number}"))) for number in range(count)
        ]

    def _settle(self, attempt: int, place: str, first: int, size: int) -> None:
        """Decide what to say of a task in flight when the last leader ended."""
        if not self._control.has(place):
            return
        order: Order = pickle.loads(self._control.get(place))
        if not order.task:
            return
        words = [reported(self._control, place, rank) for rank in range(size)]
        left = [
            self._control.has(attempt_key(attempt, f"left-{first + rank}")) for rank in range(size)
        ]
        at_limit = any(word is not None and word.status == "stalled" for word in words)
        if all(word or gone for word, gone in zip(words, left, strict=True)) and not at_limit:
            return
        silent = held_in_c if at_limit else ended_by_itself
        results = [
            word or (ended_by_torchrun(rank) if gone else silent(rank))
            for rank, (word, gone) in enumerate(zip(words, left, strict=True))
        ]
        self.remember(order.task, order.payload, results)

    def _key(self, name: str) -> str:
        return attempt_key(self.launch.attempt, name)


class TorchrunGroup:
    """Ranks that run one task at a time; see :class:`harness.ranks.launch.Ranks`.

    Made by :meth:`Leader.groups`.
    """

    def __init__(self, leader: Leader, number: int, size: int, epoch: int, member: Member) -> None:
        """Keep the arguments; the ranks are waited for when they are needed."""
        self.size = size
        self._leader = leader
        self._launch = leader.launch
        self._number = number
        self._epoch = epoch
        self._member = member if number == 0 else None
        self._control = member.control if number == 0 else Control(leader.launch)
        self._next = 0
        self._generation = 0
        self._processes: list[tuple[str, int]] = []
        self._stalled: list[int] = []
        self._lost = ""
        self._place = ""

    def run(self, task: str, payload: Any, timeout: float) -> list[RankResult]:
        """Run a task on every rank; see :meth:`harness.ranks.RankPool.run`.

        Raises:
            harness.ranks.launch.RanksLostError: If the ranks cannot go on. No task was lost before:
                the results of the one that took them down were returned.
            harness.ranks.RankStartError: If not all ranks come.
            harness.ranks.control.ControlLostError: If the store is gone.
        """
        known = [b for b in self._leader.broken if b.task == task and b.payload == payload]
        if known:
            return known[0].results
        self._wait_ready()
        order = Order(task=task, payload=payload, timeout=timeout, generation=self._generation)
        before = self._place
        self._place = self._publish(order)
        if before:
            self._forget(before)
        begun = time.monotonic()
        try:
            if self._member is not None:
                self._member.execute(order, self._place)
            results = self._collect(begun + JOIN_SECONDS + timeout + GRACE_SECONDS)
        except KeyboardInterrupt:
            # torchrun ends this rank when another one has died: the task's result comes first.
            results = self._collect(time.monotonic() + _LEFT_SECONDS, terminated=True)
            if not any(result.status == "died" for result in results):
                self._leader.say_left()
                raise
        self._take_stock(results, order)
        return results

    def interrupt(self) -> None:
        """Do nothing: a task under torchrun ends by its time limit, or with the ranks."""

    def dissolve(self) -> None:
        """Send the ranks back to wait for the next layout."""
        self._publish(Order(task=""))

    def _publish(self, order: Order) -> str:
        place = place_of(self._launch.attempt, self._epoch, self._number, self._next)
        self._next += 1
        self._control.put(place, pack(order))
        self._control.put(
            attempt_key(self._launch.attempt, f"open-{self._number}"),
            pack((place, self._number * self.size, self.size)),
        )
        return place

    def _wait_ready(self) -> None:
        if self._lost:
            raise self._give_up(self._lost)
        for rank in self._stalled:
            if not self._control.wait([free_key(self._place, rank)], 2 * GRACE_SECONDS):
                raise self._give_up(f"rank {rank} hangs in C code and cannot be brought back")
        self._stalled = []
        if not self._processes:
            hellos = [
                attempt_key(self._launch.attempt, f"hello-{self._number * self.size + rank}")
                for rank in range(self.size)
            ]
            deadline = time.monotonic() + _START_SECONDS
            while not self._control.wait(hellos, _POLL_SECONDS):
                if time.monotonic() > deadline:
                    missing = [key for key in hellos if not self._control.has(key)]
                    raise RankStartError(f"no word from {missing} after {_START_SECONDS:g} s")
            self._processes = [pickle.loads(self._control.get(key)) for key in hellos]

    def _collect(self, deadline: float, *, terminated: bool = False) -> list[RankResult]:
        """Return one result per rank.

        Raises:
            harness.ranks.launch.RanksLostError: If ranks left that are not to blame, and no other.
        """
        results: dict[int, RankResult] = {}
        left = False
        while len(results) < self.size:
            pending = [rank for rank in range(self.size) if rank not in results]
            self._control.wait([result_key(self._place, rank) for rank in pending], _POLL_SECONDS)
            for rank in pending:
                word = reported(self._control, self._place, rank)
                if word is not None:
                    results[rank] = word
            if len(results) == self.size or time.monotonic() > deadline:
                break
            if not left and self._someone_ended(pending):
                left = True
                deadline = min(deadline, time.monotonic() + _LEFT_SECONDS)
        silent = [rank for rank in range(self.size) if rank not in results]
        for rank in silent:
            results[rank] = self._judge_silence(rank, terminated)
        if silent and all(results[rank] == ended_by_torchrun(rank) for rank in silent):
            if not terminated:
                names = ", ".join(f"rank {rank}" for rank in silent)
                raise self._give_up(f"torchrun ended {names}")
        return [results[rank] for rank in range(self.size)]

    def _someone_ended(self, pending: list[int]) -> bool:
        left = self._control.has(attempt_key(self._launch.attempt, "left"))
        return left or any(self._is_dead(rank) for rank in pending)

    def _judge_silence(self, rank: int, terminated: bool) -> RankResult:
        world_rank = self._number * self.size + rank
        ours = world_rank == self._launch.rank
        if self._control.has(attempt_key(self._launch.attempt, f"left-{world_rank}")) or ours:
            return ended_by_torchrun(rank)
        if self._is_here(rank) and not self._is_dead(rank):
            return ended_by_torchrun(rank) if terminated else held_in_c(rank)
        return ended_by_itself(rank)

    def _is_here(self, rank: int) -> bool:
        return self._processes[rank][0] == socket.gethostname()

    def _is_dead(self, rank: int) -> bool:
        if not self._is_here(rank):
            return False
        try:
            status = Path(f"/proc/{self._processes[rank][1]}/stat").read_text()
        except OSError:
            return True
        return status.rpartition(")")[2].split()[0] in "ZX"

    def _give_up(self, reason: str) -> RanksLostError:
        self._lost = reason
        self._leader.lost = True
        return RanksLostError(reason)

    def _take_stock(self, results: list[RankResult], order: Order) -> None:
        self._stalled = [result.rank for result in results if result.status == "stalled"]
        dead = [result.rank for result in results if result.status == "died"]
        if self._control.has(failed_key(self._place)) or self._stalled or dead:
            self._generation += 1
        if dead:
            self._lost = "; ".join(f"rank {rank} is gone" for rank in dead)
        if dead or self._stalled:
            self._leader.remember(order.task, order.payload, results)

    def _forget(self, place: str) -> None:
        keys = [place, failed_key(place)]
        for rank in range(self.size):
            keys += [result_key(place, rank), free_key(place, rank)]
        for key in keys:
            if self._control.has(key):
                self._control.drop(key)


def run_as_rank(launch: Launch, program: Callable[[], int]) -> NoReturn:
    """Lead or follow, and end the process.

    Args:
        launch: The place of this process.
        program: What rank 0 does; returns the exit status. The other ranks run what it orders and
            end with the same status.
    """
    try:
        member = Member(launch, leads=launch.rank == 0)
        status = _lead(member, program) if launch.rank == 0 else member.follow()
        member.leave()
    except ControlLostError as error:
        print(f"rank {launch.rank}: {error}", file=sys.stderr)
        status = LOST_STATUS
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # A rank that ends by itself may abort in a C++ destructor; nothing is left to clean up.
    os._exit(status)


def _lead(member: Member, program: Callable[[], int]) -> int:
    leader = Leader(member)
    finished = leader.note("finished")
    status = LOST_STATUS
    if finished is not None:  # torchrun starts ranks again whenever the status is not 0
        status = int(finished)
    else:
        set_leader(leader)
        try:
            status = program()
        except Exception:
            traceback.print_exc()
            status = 1
        finally:
            set_leader(None)
        if not leader.lost and status != INTERRUPTED_STATUS:
            with contextlib.suppress(ControlLostError):
                leader.note("finished", str(status))
    leader.end(status)
    return status
