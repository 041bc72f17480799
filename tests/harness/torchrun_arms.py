"""Arms that go wrong under torchrun, each case in a way of its own; loaded on ranks by file name.

The case says how: by the momentum of its BatchNorms and the number of its optimizer steps.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from harness.arms.checkpointed import install as install_checkpointed

Switch = Callable[[bool], None]


def _momentum(module: nn.Module) -> float | None:
    return next(m.momentum for m in module.modules() if isinstance(m, nn.BatchNorm1d))


def _raise() -> None:
    raise ArithmeticError("planted on rank 1")


def _wait_for_nothing() -> None:
    dist.recv(torch.ones(1), src=0)


def _poll_for_ever() -> None:
    while True:
        time.sleep(0.01)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang_in_c() -> None:
    library = ctypes.CDLL(None)
    lock = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)


def _on_rank(
    rank: int, module: nn.Module, actions: dict[float | None, Callable[[], None]]
) -> Switch:
    action = actions.get(_momentum(module))
    if action is not None and os.environ["RANK"] == str(rank):
        module.register_forward_pre_hook(lambda *_: action())
    return install_checkpointed(module)


def fail_and_go_on(module: nn.Module) -> Switch:
    """Rank 1 raises, polls for ever, or waits for a message that nobody sends."""
    actions: dict[float | None, Callable[[], None]] = {
        0.1: _raise,
        1.0: _poll_for_ever,
        None: _wait_for_nothing,
    }
    return _on_rank(1, module, actions)


def lose_ranks(module: nn.Module) -> Switch:
    """Rank 1 is killed or hangs in C code, or rank 0 is killed; not without statistics."""
    norm = next(m for m in module.modules() if isinstance(m, nn.BatchNorm1d))
    if not norm.track_running_stats:
        return install_checkpointed(module)
    if norm.momentum is None:
        return _on_rank(0, module, {None: _die})
    return _on_rank(1, module, {0.1: _die, 1.0: _hang_in_c})


def meet_everyone(module: nn.Module) -> Switch:
    """Wait, in the first case of each rank, until four ranks are in a case at once."""
    place = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
    Path(f"place-{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(place))
    deadline = time.monotonic() + 60.0
    while len(list(Path().glob("place-*.json"))) < 4:
        if time.monotonic() > deadline:
            raise TimeoutError("the ranks of the other group did not come")
        time.sleep(0.01)
    return install_checkpointed(module)


def be_slow(module: nn.Module) -> Switch:
    """Every case takes a while."""
    time.sleep(0.5)
    return install_checkpointed(module)
