"""Torch's own checkpoint, alone, at the boundaries of wcn_ckpt."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from harness.computations import CALL, computes_as_boundary
from wcn_ckpt.checkpointing.made import BoundaryForward

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
Call = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""``call(boundary, fn, args, kwargs)``: computes ``fn(*args, **kwargs)`` in some way."""


class _Forward(BoundaryForward):
    """The forward of a boundary made in place, with another call around what it computes."""

    def __init__(self, module: nn.Module, replaced: Any, call: Callable[..., Any]) -> None:
        super().__init__(module, replaced)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self.__wrapped__, *args, **kwargs)


def install(module: nn.Module) -> Callable[[bool], None]:
    """Put a bare non-reentrant ``torch.utils.checkpoint`` at every boundary.

    Args:
        module: The newly built subject.

    Returns:
        A switch for all its boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """
    return replace_checkpoint(module, lambda boundary: (nullcontext(), nullcontext()))


def replace_checkpoint(
    module: nn.Module, contexts: Callable[[nn.Module], Contexts], **options: Any
) -> Callable[[bool], None]:
    """Put torch's checkpoint with given contexts in place of wcn_ckpt's at every boundary.

    Args:
        module: The newly built subject.
        contexts: Boundary -> the contexts of its forward and of its replay.
        **options: Further keyword arguments of ``torch.utils.checkpoint.checkpoint``.

    Returns:
        A switch for all the boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """

    def call(boundary: nn.Module, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return checkpoint(
            fn,
            *args,
            use_reentrant=False,
            context_fn=lambda: contexts(boundary),
            **options,
            **kwargs,
        )

    return replace_calls(module, call)


def replace_calls(module: nn.Module, call: Call) -> Callable[[bool], None]:
    """Put another call in place of the checkpointed one at every boundary.

    Args:
        module: The newly built subject.
        call: ``call(boundary, fn, args, kwargs)``, used where a boundary is active: in training
            mode, with gradients on, and switched on.

    Returns:
        A switch for all the boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """
    boundaries = list(filter(computes_as_boundary, module.modules()))
    if not boundaries:
        raise ValueError(f"{type(module).__name__} has no boundary to checkpoint")
    enabled = True

    def replacement(boundary: nn.Module) -> Callable[..., Any]:
        def replaced(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not (enabled and boundary.training and torch.is_grad_enabled()):
                return fn(*args, **kwargs)
            return call(boundary, fn, args, kwargs)

        return replaced

    for boundary in boundaries:
        made = vars(boundary).get("forward")
        if isinstance(made, BoundaryForward):
            vars(boundary)["forward"] = _Forward(boundary, made.replaced, replacement(boundary))
        else:
            # An attribute of the instance, so that other instances of the class are left alone.
            object.__setattr__(boundary, CALL, replacement(boundary))

    def switch(on: bool) -> None:
        nonlocal enabled
        enabled = on

    return switch
