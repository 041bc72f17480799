"""Child processes that find the same modules as this one."""

from __future__ import annotations

import os
import sys


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process.

    Args:
        **variables: what is different in it.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, **variables}
