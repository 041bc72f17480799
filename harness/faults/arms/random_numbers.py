"""Random numbers that a replay draws anew, or generators that it leaves elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from harness.arms.torch_checkpoint import Contexts, replace_checkpoint
from harness.faults.arms.contexts import Each, Switch


def not_preserved(module: nn.Module) -> Switch:
    """Replay with the random numbers that come next."""
    return replace_checkpoint(
        module, lambda boundary: (nullcontext(), nullcontext()), preserve_rng_state=False
    )


def only_cpu_preserved(module: nn.Module) -> Switch:
    """Replay with the forward's numbers on the CPU, and with those that come next on CUDA."""

    def contexts(boundary: nn.Module) -> Contexts:
        state = torch.get_rng_state()

        @contextmanager
        def replay() -> Iterator[None]:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                yield

        return nullcontext(), Each(replay)

    return replace_checkpoint(module, contexts, preserve_rng_state=False)


def not_put_back(module: nn.Module) -> Switch:
    """Replay with the forward's numbers and leave the generator where that ends."""

    def contexts(boundary: nn.Module) -> Contexts:
        state = torch.get_rng_state()

        @contextmanager
        def replay() -> Iterator[None]:
            torch.set_rng_state(state)
            yield

        return nullcontext(), Each(replay)

    return replace_checkpoint(module, contexts, preserve_rng_state=False)
