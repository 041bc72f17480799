"""How values pass between the pool and its ranks."""

from __future__ import annotations

import pickle
from enum import Flag
from multiprocessing.connection import Connection
from typing import Any


class Loss(Flag):
    """What a task leaves behind that the next one cannot use."""

    NONE = 0
    GROUP = 1
    """The process group: some rank left it."""
    RANKS = 2
    """The ranks: one is dead, hangs, or is not fit for another task."""


def pack(message: Any) -> bytes:
    """Pickle a message by value.

    ``Connection.send`` would pass tensors by shared memory, which only processes of one
    ``multiprocessing`` family can open. What :func:`pack` returns is read by ``Connection.recv``.

    Raises:
        Exception: If it cannot be pickled; of a kind that depends on the value.
    """
    return pickle.dumps(message)


def send(connection: Connection, message: Any) -> None:
    """Pickle a message by value and send it.

    Raises:
        OSError: If the other side is gone.
    """
    connection.send_bytes(pack(message))
