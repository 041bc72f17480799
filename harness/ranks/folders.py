"""Folders in which ranks meet and leave their logs, and what killed parents left of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "ckpt-lab-ranks-"
_NEWBORN_SECONDS = 60.0


class RankFolder:
    """A temporary folder, locked while its owner lives.

    Making one removes those whose owner was killed. A lock ends with its process however that ends,
    and holds across containers that share the folder, where process ids mean nothing.
    """

    def __init__(self) -> None:
        """Make the folder; see the class."""
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._descriptor = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def remove(self) -> None:
        """Remove the folder. Idempotent."""
        if self._descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is another user's, in use, or gone by now
            status = path.stat(follow_symlinks=False)
            # One that is younger may not be locked yet.
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _NEWBORN_SECONDS:
                _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
