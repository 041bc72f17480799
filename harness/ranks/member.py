"""One rank that torchrun started: runs what the leader, rank 0, orders."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.importing import load
from harness.ranks.context import RankContext
from harness.ranks.control import Control, ControlLostError
from harness.ranks.launch import Launch
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
from harness.ranks.pool import CACHE_LIMITS, RankResult
from harness.ranks.watchdog import Overrun, Watchdog

_WAIT_SECONDS = 30.0
_PARENT_POLL_SECONDS = 0.5


class StoreContext(RankContext):
    """A rank whose groups meet in the store.

    Args:
        rank: This rank in its group.
        size: Ranks of the group.
        backend: Backend of the group.
        store: The store.
        prefix: What keys of this group begin with.
        local_size: Ranks of the group on this machine, at most.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        backend: str,
        store: Any,
        prefix: str,
        local_size: int,
    ) -> None:
        """Keep the arguments."""
        super().__init__(rank, size, Path(), backend, local_size=local_size)
        self._store = store
        self._prefix = prefix

    def _meeting_place(self, generation: int) -> Mapping[str, Any]:
        prefix = f"{self._prefix}/group-{generation}"
        return {"store": dist.PrefixStore(prefix, self._store)}  # type: ignore[attr-defined]  # torch lists no re-exports


class Member:
    """This process as a rank.

    Args:
        launch: Its place.
        leads: Whether it gives the orders: it then ends as other programs do.

    Raises:
        harness.ranks.control.ControlLostError: If there is no store.
    """

    def __init__(self, launch: Launch, *, leads: bool) -> None:
        """Connect to the store and say hello."""
        self.launch = launch
        self.control = Control(launch, serve=launch.rank == 0 and not launch.agent_store)
        self._groups = Control(launch)
        self._alarm = Control(launch)
        self._context: StoreContext | None = None
        self._generation = -1
        self._place = ""
        self._started = 0.0
        self._farewell = threading.Lock()
        for name, limit in CACHE_LIMITS.items():
            os.environ.setdefault(name, limit)
        if launch.one_machine:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)
        gc.freeze()  # what importing made is here for good; no collection need look at it
        self._watchdog = Watchdog(
            self._report_stacks,
            self._failed_elsewhere,
            grace=GRACE_SECONDS,
            spared_port=launch.port,
        )
        self._watch_parent(leads)
        if not leads:
            self._leave_when_terminated()
        self.control.put(
            self._key(f"hello-{launch.rank}"), pack((socket.gethostname(), os.getpid()))
        )

    def follow(self) -> int:
        """Run orders until the leader ends; return its exit status.

        Raises:
            harness.ranks.control.ControlLostError: If the store is gone before that.
        """
        epoch = 0
        while True:
            layout: Layout = self._receive(self._key(f"layout-{epoch}"))
            if not layout.size:
                self.leave()
                self.control.put(self._key(f"bye-{self.launch.rank}"))
                return layout.status
            self.enter(layout, epoch)
            group, number = self.launch.rank // layout.size, 0
            while True:
                place = place_of(self.launch.attempt, epoch, group, number)
                order: Order = self._receive(place)
                if not order.task:
                    break
                self.execute(order, place)
                number += 1
            epoch += 1

    def enter(self, layout: Layout, epoch: int) -> None:
        """Take the place in a group that a layout gives to this rank."""
        self.leave()
        group, rank = divmod(self.launch.rank, layout.size)
        self._context = StoreContext(
            rank,
            layout.size,
            layout.backend,
            self._groups.store,
            f"ckpt-lab/{place_of(self.launch.attempt, epoch, group, 0)}",
            min(layout.size, self.launch.local_world_size),
        )
        self._generation = -1
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(layout.size))

    def leave(self) -> None:
        """Leave the process group."""
        if self._context is not None:
            self._context.leave()

    def execute(self, order: Order, place: str) -> None:
        """Run an order and store its result below ``place``.

        Raises:
            harness.ranks.control.ControlLostError: If the store is gone.
        """
        context = self._context
        if context is None:
            raise RuntimeError("this rank is in no group; a layout has to come first")
        self._place = place
        self._started = time.monotonic()
        try:
            try:
                self._join(order, context)
                self._watchdog.start(order.timeout)
                message, failed = _run(order, context, self._started)
                ended_in_time = self._watchdog.claim()
            finally:
                self._watchdog.stop()
        except Overrun:
            self._watchdog.stop()
            ended_in_time, message, failed = False, b"", True
        if failed or not ended_in_time:
            context.abandon_group()
        if ended_in_time:
            self._store_result(message, failed)
        else:
            self.control.put(free_key(place, context.rank))

    def say_left(self) -> None:
        """Say that this rank ends through no fault of its own; others may wait for it."""
        with self._farewell, contextlib.suppress(ControlLostError):
            control = Control(self.launch)
            control.put(self._key(f"left-{self.launch.rank}"))
            control.put(self._key("left"))

    def _join(self, order: Order, context: StoreContext) -> None:
        if order.generation == self._generation and not context.group_lost:
            return
        self._watchdog.start(JOIN_SECONDS)
        context.join(order.generation)
        self._generation = order.generation
        self._watchdog.stop()

    def _store_result(self, message: bytes, failed: bool) -> None:
        assert self._context is not None  # there was an order
        if failed:
            self.control.put(failed_key(self._place))
        self.control.put(result_key(self._place, self._context.rank), message)

    def _report_stacks(self, stacks: str) -> None:
        assert self._context is not None  # there was an order
        rank = self._context.rank
        at = time.monotonic()
        result = RankResult(
            rank=rank,
            status="stalled",
            error="still busy",
            detail=stacks,
            at=at,
            started=self._started,
        )
        with contextlib.suppress(ControlLostError):
            self._alarm.put(failed_key(self._place))
            self._alarm.put(result_key(self._place, rank), pack(result))

    def _failed_elsewhere(self) -> bool:
        try:
            return self._alarm.has(failed_key(self._place))
        except ControlLostError:
            return True

    def _receive(self, key: str) -> Any:
        while not self.control.wait([key], _WAIT_SECONDS):
            pass
        return pickle.loads(self.control.get(key))

    def _key(self, name: str) -> str:
        return attempt_key(self.launch.attempt, name)

    def _watch_parent(self, leads: bool) -> None:
        parent = os.getppid()

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(_PARENT_POLL_SECONDS)
            self.say_left()
            if leads:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(2 * GRACE_SECONDS)
            os._exit(1)

        threading.Thread(target=watch, name="parent watch", daemon=True).start()

    def _leave_when_terminated(self) -> None:
        # The byte is written by C code, so this works while the main thread is in C code too.
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        asked = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
        for number in asked:
            signal.signal(number, lambda *_: None)

        def watch() -> None:
            with ours, theirs:
                while (number := ours.recv(1)[0]) not in asked:
                    pass
                self.say_left()
                os._exit(128 + number)

        threading.Thread(target=watch, name="signal watch", daemon=True).start()


def _run(order: Order, context: StoreContext, started: float) -> tuple[bytes, bool]:
    """Return the packed result of a task, and whether the other ranks must know that it failed."""
    rank = context.rank
    try:
        value = load(order.task)(order.payload, context)
        result = RankResult(rank=rank, status="returned", value=value, started=started)
        return pack(result), context.group_lost
    except Exception as error:
        result = RankResult(
            rank=rank,
            status="raised",
            error=f"{type(error).__name__}: {error}",
            detail="".join(traceback.format_exception(error)),
            at=time.monotonic(),
            started=started,
        )
        return pack(result), True
