"""One rank in the caller's process, for models that other processes cannot import."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from harness.importing import load
from harness.inputs import forget_inputs
from harness.ranks.context import RankContext
from harness.ranks.pool import RankResult


class LocalRank:
    """Runs tasks like :class:`harness.ranks.RankPool` does, without a process group.

    A task that hangs hangs the caller: there is no time limit here.
    """

    size = 1

    def interrupt(self) -> None:
        """Do nothing: a task runs in the thread of its caller."""

    def run(self, task: str, payload: Any, timeout: float) -> list[RankResult]:
        """Run a task.

        Args:
            task: Importable name of ``function(payload, context)``.
            payload: Any value.
            timeout: Of no use here.

        Returns:
            The result of the one rank.
        """
        forget_inputs()  # another function may have taken the address of one that is gone
        context = RankContext(0, 1, Path(), "gloo")
        try:
            value = load(task)(payload, context)
        except Exception as error:
            return [
                RankResult(
                    rank=0,
                    status="raised",
                    error=f"{type(error).__name__}: {error}",
                    detail="".join(traceback.format_exception(error)),
                    at=time.monotonic(),
                )
            ]
        return [RankResult(rank=0, status="returned", value=value)]
