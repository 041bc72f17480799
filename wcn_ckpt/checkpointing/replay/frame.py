"""One logical forward of a boundary, and every replay of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from wcn_ckpt.checkpointing.replay.flag import replay_depth
from wcn_ckpt.checkpointing.replay.plan import ReplayPlan
from wcn_ckpt.checkpointing.replay.redirect import (
    Original,
    entry_values,
    put_back,
    redirect,
    redirect_statistics,
)
from wcn_ckpt.checkpointing.structure import Rebuild

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class ReplayFrame:
    """The function handed to torch's checkpoint: first the forward, then its replays.

    Torch calls the function it was given once for the forward and once for each backward pass that
    needs the activations again. The first call runs the block on the caller's own arguments. Every
    later one rebuilds the arguments from the tensors torch saved and runs the block with its
    buffers redirected, so that the module is left as the logical forward left it. A replay
    normally ends in torch's early-stop exception, which passes through like any other.

    The frame keeps no output, and no argument of the caller beyond the forward.

    Args:
        fn: the block's computation.
        plan: the state of the boundary.
        arguments: the caller's `(args, kwargs)`; None when all are positional tensors.
        rebuild: builds `(args, kwargs)` anew from the tensors in them; None in the same case.
    """

    __slots__ = (
        "_arguments",
        "_entries",
        "_fn",
        "_norms",
        "_rebuild",
        "_scratch",
        "_slots",
        "_started",
    )

    def __init__(
        self,
        fn: Callable[..., Any],
        plan: ReplayPlan,
        arguments: Arguments | None = None,
        rebuild: Rebuild | None = None,
    ) -> None:
        self._fn = fn
        self._arguments = arguments
        self._rebuild = rebuild
        self._started = False
        self._norms = plan.norms
        self._scratch = plan.scratch
        self._slots = plan.read_slots()
        if self._slots:
            self._entries = entry_values(buffers[name] for buffers, name in self._slots)

    def __call__(self, *tensors: Tensor) -> Any:
        """Run the block on `tensors`, all the tensors in its arguments."""
        if self._started:
            return self._replay(tensors)
        self._started = True
        if self._arguments is None:
            return self._fn(*tensors)
        (args, kwargs), self._arguments = self._arguments, None
        return self._fn(*args, **kwargs)

    def _replay(self, tensors: tuple[Tensor, ...]) -> Any:
        args, kwargs = (tensors, {}) if self._rebuild is None else self._rebuild(tensors)
        originals: list[Original] = []
        replay_depth.depth += 1
        try:
            # A dispatch mode of the user (selective checkpointing) must not see our own operations.
            if torch._C._len_torch_dispatch_stack():
                with _disable_current_modes():
                    self._redirect(originals)
            else:
                self._redirect(originals)
            return self._fn(*args, **kwargs)
        finally:
            put_back(originals)
            replay_depth.depth -= 1

    def _redirect(self, originals: list[Original]) -> None:
        if self._norms:
            redirect_statistics(self._norms, self._scratch, originals)
        if self._slots:
            redirect(self._slots, entry_values(self._entries), originals)
