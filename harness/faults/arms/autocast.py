"""Autocast that is another in the replay, or that a replay leaves on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from harness.arms.torch_checkpoint import Contexts, replace_checkpoint
from harness.faults.arms.contexts import Each, Switch


def lost(module: nn.Module) -> Switch:
    """Replay without autocast."""
    return replace_checkpoint(module, lambda boundary: (nullcontext(), _without_autocast()))


def lost_and_unchecked(module: nn.Module) -> Switch:
    """Replay without autocast, with torch's check of the recomputed tensors switched off."""
    return replace_checkpoint(
        module,
        lambda boundary: (nullcontext(), _without_autocast()),
        determinism_check="none",
    )


def cache_kept(module: nn.Module) -> Switch:
    """Nest autocast in a replay and leave it nested, as torch ends most replays by an exception.

    The cache of cast weights is emptied when the outermost autocast ends, so it lives on.
    """

    @contextmanager
    def nested() -> Iterator[None]:
        torch.autocast_increment_nesting()
        yield
        torch.autocast_decrement_nesting()

    return replace_checkpoint(module, lambda boundary: (nullcontext(), Each(nested)))


def casts_saved(module: nn.Module) -> Switch:
    """Save what operators that cast return, and recompute the others."""

    def policy(context: object, operator: object, *args: object, **kwargs: object) -> object:
        casts = operator == torch.ops.aten._to_copy.default
        return CheckpointPolicy.MUST_SAVE if casts else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts(boundary: nn.Module) -> Contexts:
        made: Contexts = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]  # torch's
        return made

    return replace_checkpoint(module, contexts)


def _without_autocast() -> Each:
    return Each(lambda: torch.autocast("cpu", enabled=False))
