"""Running statistics that are updated too often, too seldom, or put back wrongly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count

from torch import nn

from harness.arms.torch_checkpoint import Contexts, replace_checkpoint
from harness.faults.arms.contexts import Each, Kept, Switch, bound, keep, norms, write_back


def square_root_momentum(module: nn.Module) -> Switch:
    """Update in forward and in replay, each with ``1 - sqrt(1 - momentum)``."""

    @contextmanager
    def weaker(boundary: nn.Module) -> Iterator[None]:
        before = [(norm, norm.momentum) for norm in norms(boundary) if norm.momentum is not None]
        for norm, momentum in before:
            norm.momentum = 1 - math.sqrt(1 - momentum)
        try:
            yield
        finally:
            for norm, momentum in before:
                norm.momentum = momentum

    def contexts(boundary: nn.Module) -> Contexts:
        return weaker(boundary), Each(lambda: weaker(boundary))

    return replace_checkpoint(module, contexts)


def no_momentum_in_replay(module: nn.Module) -> Switch:
    """Replay with momentum 0, which keeps the statistics and counts the update."""

    @contextmanager
    def still(boundary: nn.Module) -> Iterator[None]:
        before = [(norm, norm.momentum) for norm in norms(boundary)]
        for norm, _ in before:
            norm.momentum = 0.0
        try:
            yield
        finally:
            for norm, momentum in before:
                norm.momentum = momentum

    return replace_checkpoint(
        module, lambda boundary: (nullcontext(), Each(lambda: still(boundary)))
    )


def only_in_replay(module: nn.Module) -> Switch:
    """Leave the statistics alone in forward and update them in the replay."""

    def contexts(boundary: nn.Module) -> Contexts:
        return bound(keep(norms(boundary))), nullcontext()

    return replace_checkpoint(module, contexts)


def restore_skipped_on_exception(module: nn.Module) -> Switch:
    """Restore where a replay returns; torch ends most of them early, with an exception."""

    @contextmanager
    def restored(boundary: nn.Module) -> Iterator[None]:
        kept = keep(norms(boundary))
        yield
        write_back(kept)

    return replace_checkpoint(
        module, lambda boundary: (nullcontext(), Each(lambda: restored(boundary)))
    )


def first_replay_only(module: nn.Module) -> Switch:
    """Restore after the first replay of a graph, and not after the next ones."""

    def contexts(boundary: nn.Module) -> Contexts:
        replays = count()

        @contextmanager
        def restored() -> Iterator[None]:
            kept = keep(norms(boundary)) if next(replays) == 0 else []
            try:
                yield
            finally:
                write_back(kept)

        return nullcontext(), Each(restored)

    return replace_checkpoint(module, contexts)


def undone(module: nn.Module) -> Switch:
    """Restore what the statistics were before the forward, not before the replay."""

    def contexts(boundary: nn.Module) -> Contexts:
        kept = keep(norms(boundary))

        @contextmanager
        def restored() -> Iterator[None]:
            try:
                yield
            finally:
                write_back(kept)

        return nullcontext(), Each(restored)

    return replace_checkpoint(module, contexts)


def variance_forgotten(module: nn.Module) -> Switch:
    """Restore the mean and the counter, and leave the variance as the replay made it."""

    @contextmanager
    def restored(boundary: nn.Module) -> Iterator[None]:
        kept = [item for item in keep(norms(boundary)) if item.name != "running_var"]
        try:
            yield
        finally:
            write_back(kept)

    return replace_checkpoint(
        module, lambda boundary: (nullcontext(), Each(lambda: restored(boundary)))
    )


def rebound(module: nn.Module) -> Switch:
    """Restore by binding the kept copies in the place of the buffers."""

    @contextmanager
    def restored(boundary: nn.Module) -> Iterator[None]:
        kept = keep(norms(boundary))
        try:
            yield
        finally:
            for item in kept:
                item.bind(item.value)

    return replace_checkpoint(
        module, lambda boundary: (nullcontext(), Each(lambda: restored(boundary)))
    )


def kept_on_a_stack(module: nn.Module) -> Switch:
    """Keep what forwards made of the statistics on one stack, and restore from its top.

    The replay of a boundary runs the forwards of those inside it again, and these push again.
    """
    stack: list[list[Kept]] = []

    @contextmanager
    def forward(own: list[nn.Module]) -> Iterator[None]:
        try:
            yield
        finally:
            stack.append(keep(own))

    @contextmanager
    def restored() -> Iterator[None]:
        try:
            yield
        finally:
            write_back(stack.pop())

    def contexts(boundary: nn.Module) -> Contexts:
        return forward(_own_norms(boundary)), Each(restored)

    return replace_checkpoint(module, contexts)


def second_call_is_a_replay(module: nn.Module) -> Switch:
    """Take the second call of a boundary before backward for its replay."""
    waiting: set[nn.Module] = set()

    def contexts(boundary: nn.Module) -> Contexts:
        again = boundary in waiting
        waiting.add(boundary)

        @contextmanager
        def replay() -> Iterator[None]:
            waiting.discard(boundary)
            with bound(keep(norms(boundary))):
                yield

        return bound(keep(norms(boundary))) if again else nullcontext(), Each(replay)

    return replace_checkpoint(module, contexts)


def _own_norms(boundary: nn.Module) -> list[nn.Module]:
    """Return the norms below a boundary that are in no other boundary below it."""
    inner = {
        below
        for child in boundary.modules()
        if child is not boundary and hasattr(child, "_gradient_checkpointed_call")
        for below in child.modules()
    }
    return [norm for norm in norms(boundary) if norm not in inner]
