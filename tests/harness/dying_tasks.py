"""Tasks in which the last rank hangs or ends, each in one way; loaded on ranks by file name."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time

from harness.ranks.context import RankContext
from harness.verdict import RankVerdict


def act(action: str, context: RankContext) -> RankVerdict:
    """Do what is named, on the last rank; find nothing on others."""
    if context.rank == context.size - 1:
        _ACTIONS[action]()
    return RankVerdict()


def pause(seconds: float, context: RankContext) -> None:
    """Take some time, and end."""
    time.sleep(seconds)


def hang_in_c_with_a_child(payload: object, context: RankContext) -> None:
    subprocess.Popen(["sleep", "3600"])
    _sleep_in_c_with_the_lock()


def _sleep_in_c_with_the_lock() -> None:
    ctypes.PyDLL(None).sleep(3600)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _leave_in_python() -> None:
    sys.exit(9)


def _killed_with_children() -> None:
    """Be killed while a child holds the connection to the lab, and another one runs."""
    if not os.fork():
        time.sleep(3600)
    subprocess.Popen(["sleep", "3600"])
    os.kill(os.getpid(), signal.SIGKILL)


def _killed_by_a_real_time_signal() -> None:
    os.kill(os.getpid(), signal.SIGRTMIN + 5)


def _read_at_address_zero() -> None:
    ctypes.string_at(0)


def _out_of_memory() -> None:
    # The limit stays: a rank that goes on would fail in the next case as well.
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))
    bytearray(2**30)


_ACTIONS = {
    "sleep in C with the lock": _sleep_in_c_with_the_lock,
    "stop": _stop,
    "leave in Python": _leave_in_python,
    "killed with children": _killed_with_children,
    "killed by a real-time signal": _killed_by_a_real_time_signal,
    "read at address zero": _read_at_address_zero,
    "out of memory": _out_of_memory,
}
