"""Ends tasks that run too long in a process that cannot be replaced from outside.

Three means, one after the other: the connections of the process group are cut, which ends any wait
in a collective; an exception is raised in the main thread, which ends Python code and system calls;
and where neither helps, because C code hangs, the process exits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

STUCK_STATUS = 70
"""Exit status of a rank that hangs in C code."""

_RAISE_SIGNAL = signal.SIGUSR2
_POLL_SECONDS = 0.25


class Overrun(BaseException):  # noqa: N818  (no error of the task; no task catches it by mistake)
    """The task ran past its time limit, or for too long after another rank had failed."""


@dataclass(eq=False)
class _Watch:
    limit: float
    hurried: bool = False
    claimed: bool = False
    """Whether the result of the task has been decided, by its end or by its limit."""


class Watchdog:
    """Watches the main thread of a process.

    Args:
        on_limit: Called from the watching thread with the stacks of all threads where a task ran
            too long; the task's result is then the caller's to report.
        failed_elsewhere: Tells whether another rank failed at the current task.
        grace: Seconds that a task gets after another rank failed, and an ended one to end.
        spared_port: Connections to this port are never cut.
    """

    def __init__(
        self,
        on_limit: Callable[[str], None],
        failed_elsewhere: Callable[[], bool],
        *,
        grace: float,
        spared_port: int,
    ) -> None:
        """Start the thread."""
        self._on_limit = on_limit
        self._failed_elsewhere = failed_elsewhere
        self._grace = grace
        self._spared_port = spared_port
        self._watch: _Watch | None = None
        self._busy = False
        self._changed = threading.Condition()
        self._spared = _sockets()
        signal.signal(_RAISE_SIGNAL, self._raise)
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def start(self, seconds: float) -> None:
        """Begin to watch a task of the main thread; :meth:`stop` has to follow.

        Args:
            seconds: Its time limit.
        """
        # The interpreter's lock may be what C code holds: then no Python thread can act.
        faulthandler.dump_traceback_later(seconds + 2 * self._grace, exit=True)
        with self._changed:
            self._watch = _Watch(time.monotonic() + seconds)
            self._busy = True
            self._changed.notify()

    def claim(self) -> bool:
        """Tell whether the task ended before its limit did; afterwards it did."""
        with self._changed:
            watch = self._watch
            if watch is None or watch.claimed:
                return False
            watch.claimed = True
            return True

    def stop(self) -> None:
        """End the watch. Idempotent."""
        self._busy = False
        with self._changed:
            self._watch = None
            self._changed.notify()
        faulthandler.cancel_dump_traceback_later()

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            raise Overrun

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._watch is None:
                    self._changed.wait()
                watch = self._watch
                self._changed.wait(max(0.0, min(_POLL_SECONDS, watch.limit - time.monotonic())))
                if self._watch is not watch or watch.claimed:
                    continue
            self._inspect(watch)

    def _inspect(self, watch: _Watch) -> None:
        if not watch.hurried and self._failed_elsewhere():
            watch.hurried = True
            watch.limit = min(watch.limit, time.monotonic() + self._grace)
        if time.monotonic() < watch.limit:
            return
        stacks = _stacks()
        if not self.claim():
            return
        self._on_limit(stacks)
        deadline = time.monotonic() + self._grace
        while self._watch is watch:
            if time.monotonic() > deadline:
                os._exit(STUCK_STATUS)
            _cut(_sockets() - self._spared, self._spared_port)
            signal.pthread_kill(_main_thread(), _RAISE_SIGNAL)
            with self._changed:
                self._changed.wait(_POLL_SECONDS)


def _main_thread() -> int:
    identity = threading.main_thread().ident
    assert identity is not None  # it has started
    return identity


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _sockets() -> set[tuple[int, int]]:
    """Return descriptor and inode of each open socket."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(name), status.st_ino))
    return found


def _cut(sockets: set[tuple[int, int]], spared_port: int) -> None:
    for descriptor, _ in sockets:
        with contextlib.suppress(OSError):
            with socket.socket(fileno=os.dup(descriptor)) as link:
                if link.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                if link.getpeername()[1] != spared_port:
                    link.shutdown(socket.SHUT_RDWR)
