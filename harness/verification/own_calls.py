"""Checkpoint calls that a model makes without a switch, seen and switched all the same.

Many models call ``torch.utils.checkpoint.checkpoint`` in their forward whenever they train. For
those the ordinary arm is the same forward with each of these calls replaced by what it would
recompute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from wcn_ckpt.checkpointing.functions import TORCH_KEYWORDS, plain_checkpoint
from wcn_ckpt.checkpointing.takeover import take_over


class OwnCalls:
    """A switch for the checkpoint calls of one model: hooks before and after its forward.

    Args:
        module: The model; its calls are off at first.
    """

    def __init__(self, module: nn.Module) -> None:
        self.on = False
        self._give_back: list[Callable[[], None]] = []
        module.register_forward_pre_hook(self._before, prepend=True)
        module.register_forward_hook(self._after, always_call=True)

    def _before(self, *_: Any) -> None:
        if not self.on:
            self._give_back.append(take_over(_computed))

    def _after(self, *_: Any) -> None:
        if self._give_back:
            self._give_back.pop()()


def switch_of(module: nn.Module) -> OwnCalls | None:
    """Return the switch that was put into a model; None where there is none."""
    owners = (getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values())
    return next((owner for owner in owners if isinstance(owner, OwnCalls)), None)


@contextmanager
def counted() -> Iterator[list[str]]:
    """Note the names of the functions that torch's checkpoint is given."""
    seen: list[str] = []

    def note(function: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(getattr(function, "__qualname__", type(function).__name__))
        return plain_checkpoint(function, *args, **kwargs)

    give_back = take_over(note)
    try:
        yield seen
    finally:
        give_back()


def _computed(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **{k: v for k, v in kwargs.items() if k not in TORCH_KEYWORDS})
