"""One rank as the pool sees it: a process that leads a process group, and a connection to it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

from harness.ranks.janitor import kill_group


class RankProcess:
    """A started rank.

    What it starts itself is in its process group, and ends with it. The process is not reaped
    before its group is killed, so that the group's id cannot belong to anything else by then.

    Args:
        arguments: Command line of the rank, without those of its connection.
        environment: Its environment.
        log: Where its output goes.
    """

    def __init__(
        self, arguments: list[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *arguments, "--fd", str(theirs.fileno())],
                env=environment,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.id = self._process.pid
        """Process id, and id of the process group."""
        self.connection = Connection(ours.detach())
        """Where tasks go and reports come from."""
        self.end = os.pidfd_open(self.id)
        """A file descriptor that is readable once the process has ended."""

    def ended(self, seconds: float) -> bool:
        """Wait until the process has ended, at most for some time.

        Args:
            seconds: How long.

        Returns:
            Whether it has.
        """
        return bool(wait([self.end], max(0.0, seconds)))

    def exit_text(self, seconds: float) -> str:
        """Say how the process ended.

        Args:
            seconds: How long to wait for its end.
        """
        if not self.ended(seconds):
            return "closed its connection but did not exit"
        ended = os.waitid(os.P_PID, self.id, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_code == os.CLD_EXITED:
            return f"exited with status {ended.si_status if ended else 'unknown'}"
        return f"was killed by {_signal_name(ended.si_status)}"

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal; nothing happens where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.id, number)

    def kill(self) -> None:
        """Kill the process and all it started, and release what belongs to it."""
        kill_group(self.id)
        self._process.wait()
        self.connection.close()
        os.close(self.end)


def last_lines(path: Path, most: int) -> str:
    """Return the last lines of a log.

    Args:
        path: The log.
        most: How many lines.
    """
    return "\n".join(path.read_text(errors="replace").splitlines()[-most:])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal other than the first and the last
        return f"signal {number}"
