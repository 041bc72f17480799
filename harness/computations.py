"""Counts how often boundaries compute, whichever way they were made boundaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from wcn_ckpt.checkpointing.made import BoundaryForward

CALL = "_gradient_checkpointed_call"
"""The method through which a block that derives from the mixin computes."""

Computation = Callable[..., Any]
"""What a boundary computes."""


def computes_as_boundary(module: nn.Module) -> bool:
    """Tell whether a module is a boundary of wcn_ckpt: by its class, or made one in place."""
    return hasattr(module, CALL) or isinstance(vars(module).get("forward"), BoundaryForward)


def in_backward() -> bool:
    """Tell whether autograd is in a backward pass: what computes then is a replay.

    A block that asks for a gradient in its own forward is replayed before that forward has ended.
    """
    return bool(torch._C._current_graph_task_id() != -1)


def count_computations(module: nn.Module, count: Callable[[str], None]) -> Callable[[], None]:
    """Count, from now on, each computation of each boundary, replays included.

    Args:
        module: What the boundaries are in.
        count: Called with the path of a boundary when it starts to compute.

    Returns:
        A function that ends the counting.
    """

    def counted(function: Computation, name: str) -> Computation:
        def counting(*args: Any, **kwargs: Any) -> Any:
            count(name)
            return function(*args, **kwargs)

        return counting

    return wrap_computations(module, counted)


def wrap_computations(
    module: nn.Module, wrap: Callable[[Computation, str], Computation]
) -> Callable[[], None]:
    """Put something around the computation of each boundary, in forwards and in replays.

    Args:
        module: What the boundaries are in.
        wrap: Computation and path of a boundary -> what is called in its place.

    Returns:
        A function that takes it away.
    """
    undo: list[Callable[[], None]] = []
    for name, boundary in module.named_modules():
        forward = vars(boundary).get("forward")
        if isinstance(forward, BoundaryForward):
            undo.append(_wrap_made(forward, name, wrap))
        elif hasattr(boundary, CALL):
            undo.append(_wrap_derived(boundary, name, wrap))

    def end() -> None:
        for restore in undo:
            restore()

    return end


def _wrap_made(
    forward: BoundaryForward, name: str, wrap: Callable[[Computation, str], Computation]
) -> Callable[[], None]:
    replaced, computation = forward.replaced, forward.__wrapped__
    forward.replaced = wrap(computation, name)

    def restore() -> None:
        forward.replaced = replaced

    return restore


def _wrap_derived(
    boundary: nn.Module, name: str, wrap: Callable[[Computation, str], Computation]
) -> Callable[[], None]:
    call = getattr(boundary, CALL)
    before = vars(boundary).get(CALL)

    def wrapped_call(fn: Computation, *args: Any, **kwargs: Any) -> Any:
        return call(wrap(fn, name), *args, **kwargs)

    object.__setattr__(boundary, CALL, wrapped_call)

    def restore() -> None:
        if before is None:
            object.__delattr__(boundary, CALL)
        else:
            object.__setattr__(boundary, CALL, before)

    return restore
