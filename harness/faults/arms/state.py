"""State that a replay reads at the wrong moment, or writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from weakref import WeakKeyDictionary

import torch
from torch import nn

from harness.arms.torch_checkpoint import Contexts, replace_checkpoint
from harness.faults.arms.contexts import Each, Kept, Switch, bound, keep


def given_back_early(module: nn.Module) -> Switch:
    """Replay on the state of the forward once; further passes see the state of today."""

    def contexts(boundary: nn.Module) -> Contexts:
        entry = keep(boundary.modules())
        replays = count()

        def replay() -> AbstractContextManager[None]:
            return bound(entry if next(replays) == 0 else keep(boundary.modules()))

        return nullcontext(), Each(replay)

    return replace_checkpoint(module, contexts)


def newest_microbatch(module: nn.Module) -> Switch:
    """Keep the state of one forward only: every replay sees the newest one's."""
    newest: WeakKeyDictionary[nn.Module, list[Kept]] = WeakKeyDictionary()

    def contexts(boundary: nn.Module) -> Contexts:
        newest[boundary] = keep(boundary.modules())
        return nullcontext(), Each(lambda: bound(newest[boundary]))

    return replace_checkpoint(module, contexts)


def one_element_of_one_rank(module: nn.Module) -> Switch:
    """Let a replay on the last rank write one part in 10^5 to one element of one buffer."""
    last = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)

    @contextmanager
    def written(boundary: nn.Module) -> Iterator[None]:
        kept = keep(boundary.modules())
        try:
            with bound(kept):
                yield
        finally:
            floats = [item.buffer for item in kept if item.buffer.is_floating_point()]
            if last and floats:
                with torch.no_grad():
                    floats[-1].data.view(-1)[0] *= 1 + 1e-5

    return replace_checkpoint(
        module, lambda boundary: (nullcontext(), Each(lambda: written(boundary)))
    )
