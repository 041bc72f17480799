"""Ends what a killed lab leaves: a small process that outlives the lab by a moment.

A process that is killed cleans up nothing, and its ranks may not be able to notice: one that hangs
in a C call runs no Python thread. So the pool keeps a janitor: a process that knows the ranks'
process groups and the pool's folder, and reads a pipe that ends with the lab. It runs this file
alone, without site packages, and starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys


class Janitor:
    """The lab's side of a janitor process.

    Args:
        folder: What the process removes in the end.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Start the process."""
        reading, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, os.fspath(folder)],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the terminal is not for it
            )
        finally:
            os.close(reading)

    def watch(self, group: int) -> None:
        """Have a process group killed when the lab is gone.

        Args:
            group: Id of the process that leads it.
        """
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Leave a process group alone: it has ended, and its id may be used again."""
        self._tell(f"-{group}\n")

    def dismiss(self) -> None:
        """Let it remove the folder, and wait for its end. Idempotent."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
            self._process.wait()

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # where somebody killed it, ranks still watch the lab
            os.write(self._pipe, line.encode())


def kill_group(group: int) -> None:
    """Kill every process of a group, of which none may be left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _main(folder: str) -> None:
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        if line.startswith(b"+"):
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        kill_group(group)
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _main(sys.argv[1])
