"""Standard streams that may go away: a closed pipe, a full disk, or none at all."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO


class LastingStream(io.TextIOWrapper):
    """Text on a file descriptor; what comes after it could not be written is dropped.

    What a run finds stands in its results folder, so a reader that has gone (``| head -1``) or a
    full disk ends neither the run nor its exit status.

    Args:
        stream: The stream in whose place it stands; has a file descriptor.
    """

    def __init__(self, stream: TextIO) -> None:
        """Take the place of the stream; see the class."""
        stream.flush()
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        super().__init__(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=True,
        )
        self.error: OSError | None = None
        """Why output was lost, unless its reader left."""

    def write(self, text: str, /) -> int:
        """Write text, or drop it once the stream is lost."""
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        """Flush, or drop what is left once the stream is lost."""
        try:
            super().flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno != errno.EPIPE:
            self.error = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def keep_streams() -> LastingStream | None:
    """Put lasting streams in place of standard output and standard error.

    A stream that was closed before the program started is replaced by one that drops everything.

    Returns:
        Standard output; None where it was closed.
    """
    sys.stderr = _lasting(sys.stderr) or open(os.devnull, "w")
    output = _lasting(sys.stdout)
    sys.stdout = output or open(os.devnull, "w")
    return output


def _lasting(stream: TextIO | None) -> LastingStream | None:
    return None if stream is None else LastingStream(stream)
