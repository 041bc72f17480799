"""A pool of persistent local ranks that survives what its tasks do.

Ranks start once and run many tasks. Every rank reports every task. A rank that raises leaves the
process group, which wakes the others; a rank that dies or hangs is recorded with its exit signal
or its stacks, all ranks are replaced, and the next task runs on fresh ones.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from harness.ranks.deadline import Deadline
from harness.ranks.folders import RankFolder
from harness.ranks.janitor import Janitor
from harness.ranks.messages import Loss, pack, send
from harness.ranks.process import RankProcess, last_lines

BACKENDS = ("auto", "gloo", "nccl")
"""Backends of the ranks' group; ``auto`` is nccl where each rank has a CUDA device of its own."""

MOST_RANKS = 64
"""How many ranks one machine may be asked to start; each is a process with its own torch."""

STACKS_SIGNAL = signal.SIGUSR1
"""Makes a rank write the stacks of all its threads to its stacks file."""

CACHE_LIMITS = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
"""Environment variables of a rank that are not set otherwise. oneDNN compiles a kernel for each
shape of operands in bfloat16, and it and torch keep 1024 of them each: over a night of sparse
inputs, whose shapes hardly repeat, that comes to 2 GiB for each rank."""

_STACKS_SECONDS = 1.0
_STOP_SECONDS = 5.0
_LOG_LINES = 20


class RankStartError(RuntimeError):
    """The ranks could not be started."""


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank did with one task."""

    rank: int
    """Which rank."""
    status: Literal["returned", "raised", "died", "stalled"]
    """``stalled``: it was still busy at the time limit, or a while after another rank failed."""
    value: Any = None
    """What the task returned."""
    error: str = ""
    """Type and message of what was raised, or how the process ended."""
    detail: str = ""
    """Traceback of what was raised, stacks of a stalled rank, last log lines of a dead one."""
    at: float = 0.0
    """When it failed, in seconds of the monotonic clock of its machine."""
    started: float = 0.0
    """When it took the task, by the same clock; 0 where all ranks are on one machine."""


class RankPool:
    """Persistent ranks on this machine.

    Use it as a context manager, and from one thread. Ranks, what they started, and the pool's
    folder never outlive the process that made the pool, however that ends.

    Args:
        size: Number of ranks.
        start_timeout: Seconds the ranks may take to start.
        grace: Seconds that the other ranks get to report after one rank failed.
        backend: One of :data:`BACKENDS`; the CPU is served by gloo in any case.
        first: Number of the first rank on this machine, where other pools run beside this one; it
            decides which CUDA device each rank takes.
    """

    def __init__(
        self,
        size: int = 2,
        *,
        start_timeout: float = 120.0,
        grace: float = 5.0,
        backend: str = "gloo",
        first: int = 0,
    ) -> None:
        """Start the processes; returns before they are ready."""
        if not 1 <= size <= MOST_RANKS:
            raise ValueError(f"a pool needs at least one rank, got {size}; at most {MOST_RANKS}")
        if backend not in BACKENDS:
            raise ValueError(f"no backend {backend!r}; valid backends: {', '.join(BACKENDS)}")
        self._backend = backend
        self._first = first
        self.size = size
        self._start_timeout = start_timeout
        self._grace = grace
        self._folder = RankFolder()
        self._janitor = Janitor(self._folder.path)
        self._ranks: list[RankProcess] = []
        self._ready = False
        self._generation = 0
        self._starts = 0
        self._closed = False
        self._start()

    def __enter__(self) -> RankPool:
        """Return the pool."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the pool; at once where an exception passes."""
        if error is not None:
            self._kill()
        self.close()

    @property
    def processes(self) -> list[int]:
        """Process ids of the current ranks."""
        return [rank.id for rank in self._ranks]

    def run(self, task: str, payload: Any, timeout: float) -> list[RankResult]:
        """Run a task on every rank.

        Args:
            task: Importable name of ``function(payload, context)``, with ``context`` a
                :class:`~harness.ranks.context.RankContext`.
            payload: Any value that pickles, as what the task returns must; tensors are copied.
            timeout: Seconds until ranks that have not reported count as stalled; while the machine
                stands still they do not pass.

        Returns:
            One result per rank, in rank order. The pool is usable whatever they say.

        Raises:
            RankStartError: If the ranks cannot be started.
            RuntimeError: If the pool is closed.
        """
        if self._closed:
            raise RuntimeError("the pool is closed; make a new one")
        if not self._send_all(("run", (task, payload))):
            self._replace()
            if not self._send_all(("run", (task, payload))):
                raise RankStartError("the ranks ended before they took a task:\n" + self._logs())
        results, loss = self._collect(timeout)
        if Loss.RANKS in loss:
            self._replace()
        elif Loss.GROUP in loss:
            self._rejoin()
        return results

    def interrupt(self) -> None:
        """Make a task that runs in another thread end soon: its ranks are killed."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """Stop the ranks: politely first, then by force. Idempotent."""
        self._closed = True
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                send(rank.connection, ("stop", None))
        deadline = time.monotonic() + _STOP_SECONDS
        for rank in self._ranks:
            rank.ended(deadline - time.monotonic())
        self._kill()
        self._folder.remove()
        self._janitor.dismiss()

    def _start(self) -> None:
        self._starts += 1
        folder = self._folder.path / str(self._starts)
        folder.mkdir()
        self._rank_folder = folder
        self._ready = False
        self._generation = 0
        try:
            for rank in range(self.size):
                self._ranks.append(self._start_rank(rank, folder))
        except BaseException:
            self._kill()
            raise

    def _start_rank(self, number: int, folder: Path) -> RankProcess:
        arguments = ["-m", "harness.ranks.worker"]
        arguments += ["--rank", str(number), "--size", str(self.size), "--folder", str(folder)]
        arguments += ["--parent", str(os.getpid()), "--backend", self._backend]
        with open(folder / f"log-{number}", "wb") as log:
            rank = RankProcess(arguments, _environment(number, self.size, self._first), log)
        self._janitor.watch(rank.id)
        return rank

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        for number, rank in enumerate(self._ranks):
            try:
                if not rank.connection.poll(max(0.0, deadline - time.monotonic())):
                    problem = f"was not ready after {self._start_timeout:g} s"
                else:
                    rank.connection.recv()
                    continue
            except (EOFError, OSError):
                problem = rank.exit_text(_STOP_SECONDS)
            log = self._log(number)
            self._kill()
            raise RankStartError(f"rank {number} {problem}; its last output:\n{log}")
        self._ready = True

    def _send_all(self, message: tuple[str, Any]) -> bool:
        if not self._ranks:
            self._start()
        if not self._ready:
            self._wait_ready()
        packed = pack(message)
        try:
            for rank in self._ranks:
                rank.connection.send_bytes(packed)
        except OSError:
            return False
        return True

    def _collect(self, timeout: float) -> tuple[list[RankResult], Loss]:
        deadline = Deadline(timeout)
        results: dict[int, RankResult] = {}
        loss = Loss.NONE
        while len(results) < self.size:
            pending = [number for number in range(self.size) if number not in results]
            # A rank's end is watched too: what it started may hold its connection open.
            numbers: dict[Any, int] = {}
            for number in pending:
                numbers[self._ranks[number].connection] = numbers[self._ranks[number].end] = number
            ready = deadline.wait(partial(wait, list(numbers)))
            if not ready:
                break
            for number in {numbers[source] for source in ready}:
                results[number], lost = self._receive(number)
                loss |= lost
                if lost:
                    deadline.bring_forward(self._grace)
        for number in range(self.size):
            if number not in results:
                results[number] = self._stalled(number)
                loss |= Loss.RANKS
        return [results[number] for number in range(self.size)], loss

    def _receive(self, number: int) -> tuple[RankResult, Loss]:
        rank = self._ranks[number]
        try:
            if not rank.connection.poll():
                raise EOFError
            kind, body = rank.connection.recv()
        except (EOFError, OSError):
            at = time.monotonic()
            problem = rank.exit_text(_STOP_SECONDS)
            detail = self._log(number)
            result = RankResult(rank=number, status="died", error=problem, detail=detail, at=at)
            return result, Loss.RANKS
        except Exception as error:
            at = time.monotonic()
            text = f"what the task returned cannot be read here: {type(error).__name__}: {error}"
            return RankResult(rank=number, status="raised", error=text, at=at), Loss.GROUP
        if kind == "returned":
            return RankResult(rank=number, status="returned", value=body["value"]), body["loss"]
        result = RankResult(
            rank=number,
            status="raised",
            error=body["error"],
            detail=body["traceback"],
            at=body["at"],
        )
        return result, body["loss"]

    def _stalled(self, number: int) -> RankResult:
        at = time.monotonic()
        stacks = self._rank_folder / f"stacks-{number}"
        before = stacks.stat().st_size
        self._ranks[number].signal(STACKS_SIGNAL)
        last, size = before, -1
        while time.monotonic() < at + _STACKS_SECONDS and not (last == size > before):
            time.sleep(0.05)
            last, size = size, stacks.stat().st_size
        text = stacks.read_text(errors="replace")
        return RankResult(
            rank=number,
            status="stalled",
            error="still busy",
            detail=text or "it gave no stacks: the process is stopped or stuck in the kernel",
            at=at,
        )

    def _rejoin(self) -> None:
        self._generation += 1
        if not self._send_all(("join", self._generation)):
            self._replace()
            return
        try:
            self._wait_ready()
        except RankStartError:
            self._start()

    def _replace(self) -> None:
        self._kill()
        self._start()

    def _kill(self) -> None:
        while self._ranks:
            rank = self._ranks.pop()
            rank.kill()
            self._janitor.forget(rank.id)

    def _log(self, number: int) -> str:
        return last_lines(self._rank_folder / f"log-{number}", _LOG_LINES)

    def _logs(self) -> str:
        return "\n".join(f"rank {number}: {self._log(number)}" for number in range(self.size))


def _environment(rank: int, size: int, first: int) -> dict[str, str]:
    return {
        **CACHE_LIMITS,
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(first + rank),
        "WORLD_SIZE": str(size),
    }
