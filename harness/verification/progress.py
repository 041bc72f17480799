"""What a terminal shows while verify runs."""

from __future__ import annotations

import time

from rich.console import Console

from harness.row import Row
from harness.verification.verifying import Progress

_SECONDS = 5.0


def progress_on(console: Console) -> Progress:
    """Return a function that prints a line now and then.

    Args:
        console: Where to print.
    """
    last = time.monotonic()
    failing = 0

    def show(done: int, total: int, row: Row) -> None:
        nonlocal last, failing
        failing += not row.passed
        now = time.monotonic()
        if now - last >= _SECONDS and done < total:
            last = now
            console.print(f"{done}/{total} cases, {failing} not ok")

    return show
