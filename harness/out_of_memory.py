"""Tells errors that say that memory ran out."""

from __future__ import annotations

import re

_OUT_OF_MEMORY = re.compile(
    r"\A(\w+\.)*(MemoryError|OutOfMemoryError)\b|can't allocate memory|out of memory",
    re.IGNORECASE,
)


def is_out_of_memory(error: str) -> bool:
    """Tell whether an error says that memory ran out, on the machine or on a device.

    Args:
        error: Type and message, as ``RuntimeError: ... can't allocate memory ...``.
    """
    return bool(_OUT_OF_MEMORY.search(error))
