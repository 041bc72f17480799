"""A time limit that does not run while the machine stands still."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Found = TypeVar("_Found")

_STEP_SECONDS = 1.0
_STANDSTILL_SECONDS = 1.0
"""How much longer than asked for a wait takes where the machine stood still, or this process."""


class Deadline:
    """A moment that is put off by the time in which nothing on the machine ran.

    A laptop that sleeps and a virtual machine that is moved stop every process, and the clock goes
    on: when they wake, what they were doing is as far as it was, and a limit by the clock is past.

    Args:
        seconds: From now on.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then; 0 afterwards."""
        return max(0.0, self._at - time.monotonic())

    def bring_forward(self, seconds: float) -> None:
        """Let it be that many seconds from now, if that is earlier."""
        self._at = min(self._at, time.monotonic() + seconds)

    def wait(self, wait: Callable[[float], _Found]) -> _Found:
        """Wait until something is found, or until then.

        Args:
            wait: Waits for some seconds, and returns something true as soon as it finds it.

        Returns:
            What was returned last.
        """
        while True:
            step = min(_STEP_SECONDS, self.left)
            begun = time.monotonic()
            found = wait(step)
            took = time.monotonic() - begun
            if took - step > _STANDSTILL_SECONDS:
                self._at += took  # when in this wait it stood still, nobody knows
            if found or not self.left:
                return found
