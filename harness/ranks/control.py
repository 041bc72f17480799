"""Messages between ranks that torchrun started: values in torch's key-value store.

No process group and no collective is needed, so a rank that hangs in one can still be told so.
Values are bytes; large ones are split, since the store refuses them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from harness.ranks.launch import Launch, RanksLostError

_PREFIX = "ckpt-lab/"
_LARGEST = 1 << 20
_PARTS = ".parts"
_CONNECT_SECONDS = 60.0
_SHORTEST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.02


class ControlLostError(RanksLostError):
    """The store is gone, and with it the agent or the rank that served it."""


class Control:
    """One connection to the store.

    Args:
        launch: Where the store is.
        serve: Serve the store, where no agent does.

    Raises:
        ControlLostError: If there is no store.
    """

    def __init__(self, launch: Launch, *, serve: bool = False) -> None:
        """Connect."""
        self.store: Any
        try:
            self.store = dist.TCPStore(  # type: ignore[attr-defined]  # torch lists no re-exports
                launch.host,
                launch.port,
                is_master=serve,
                wait_for_workers=False,
                multi_tenant=True,
                timeout=timedelta(seconds=_CONNECT_SECONDS),
            )
        except dist.DistError as error:
            raise _lost(error) from error

    def put(self, key: str, value: bytes = b"") -> None:
        """Store a value; who waits for the key sees all of it.

        Raises:
            ControlLostError: If the store is gone.
        """
        try:
            parts = [value[i : i + _LARGEST] for i in range(0, len(value), _LARGEST)] or [b""]
            for number, part in enumerate(parts[1:], 1):
                self.store.set(f"{_PREFIX}{key}.{number}", part)
            self.store.set(f"{_PREFIX}{key}{_PARTS}", str(len(parts)).encode())
            self.store.set(_PREFIX + key, parts[0])
        except dist.DistError as error:
            raise _lost(error) from error

    def get(self, key: str) -> bytes:
        """Return the value of a key that is there.

        Raises:
            ControlLostError: If the store is gone.
        """
        try:
            count = int(self.store.get(f"{_PREFIX}{key}{_PARTS}"))
            value: bytes = self.store.get(_PREFIX + key)
            rest = (self.store.get(f"{_PREFIX}{key}.{number}") for number in range(1, count))
            return value + b"".join(rest)
        except dist.DistError as error:
            raise _lost(error) from error

    def has(self, *keys: str) -> bool:
        """Tell whether all keys are there.

        Raises:
            ControlLostError: If the store is gone.
        """
        try:
            return bool(self.store.check([_PREFIX + key for key in keys]))
        except dist.DistError as error:
            raise _lost(error) from error

    def wait(self, keys: Sequence[str], seconds: float) -> bool:
        """Wait until all keys are there, and tell whether they are.

        The store is asked again and again: torch logs a warning when a wait of its own times out.

        Raises:
            ControlLostError: If the store is gone.
        """
        deadline = time.monotonic() + seconds
        pause = _SHORTEST_PAUSE
        while not self.has(*keys):
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.3, _LONGEST_PAUSE)
        return True

    def drop(self, key: str) -> None:
        """Remove a key that is there.

        Raises:
            ControlLostError: If the store is gone.
        """
        try:
            for number in range(1, int(self.store.get(f"{_PREFIX}{key}{_PARTS}"))):
                self.store.delete_key(f"{_PREFIX}{key}.{number}")
            self.store.delete_key(f"{_PREFIX}{key}{_PARTS}")
            self.store.delete_key(_PREFIX + key)
        except dist.DistError as error:
            raise _lost(error) from error


def _lost(error: Exception) -> ControlLostError:
    return ControlLostError(f"torchrun's store is gone ({str(error).partition(chr(10))[0]})")
