"""An arm that hangs, dies or raises in the cases that a plan names; for ``ci/chaos.py``."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from harness.arms.checkpointed import install as install_checkpointed

PLAN = "CKPT_LAB_CHAOS_PLAN"
"""Environment variable with the path of the plan: JSON, seed of a case -> name of a disaster."""


def install(module: nn.Module) -> Callable[[bool], None]:
    """Checkpoint as usual, and bring about what the plan has for this case on one of the ranks.

    Args:
        module: The newly built subject.

    Returns:
        A switch for all its boundaries.
    """
    rank = int(os.environ["RANK"])
    # What weights are drawn from tells the case: its own seed plus the rank.
    case_seed = torch.default_generator.initial_seed() - rank
    name = json.loads(Path(os.environ[PLAN]).read_text()).get(str(case_seed))
    if name is not None and rank == case_seed % int(os.environ["WORLD_SIZE"]):
        module.register_forward_pre_hook(lambda *_: DISASTERS[name]() and None)
    return install_checkpointed(module)


def _loop() -> None:
    while True:
        pass


def _sleep_in_c() -> None:
    ctypes.PyDLL(None).sleep(3600)  # with the interpreter's lock held


def _wait_for_nobody() -> None:
    dist.barrier()


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise ArithmeticError("planned disaster")


DISASTERS: dict[str, Callable[[], None]] = {
    "loop": _loop,
    "sleep in C": _sleep_in_c,
    "collective": _wait_for_nobody,
    "SIGKILL": _killed,
    "exception": _raise,
}
"""Name -> what happens."""
