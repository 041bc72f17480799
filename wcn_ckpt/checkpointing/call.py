"""One call of a boundary, whether it derives from the mixin or was made one in place.

A boundary is a module with these attributes: `gradient_checkpointing`, `training`,
`_replay_options`, `_reads_and_writes_state`, `_state_was_watched` and `_warned_inactive`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.accelerator import current_accelerator
from torch.utils.checkpoint import checkpoint, noop_context_fn

from wcn_ckpt.checkpointing.contexts import (
    HOOKS_KEYWORD,
    ContextFunction,
    compose_context_functions,
    told_of_hooks,
)
from wcn_ckpt.checkpointing.errors import InactiveBoundaryWarning
from wcn_ckpt.checkpointing.functions import (
    DEFAULT_KEYWORDS,
    CheckpointFunction,
    plain_checkpoint,
)
from wcn_ckpt.checkpointing.replay.frame import ReplayFrame
from wcn_ckpt.checkpointing.replay.known import (
    has_read_state,
    has_running_statistics,
    has_unknown_state,
)
from wcn_ckpt.checkpointing.replay.memory import memory_of
from wcn_ckpt.checkpointing.replay.naming import name_of
from wcn_ckpt.checkpointing.structure import PLAIN, StructuredCall

Boundary = Any
"""An `nn.Module` with the attributes of a boundary."""


def is_active(boundary: Boundary) -> bool:
    """Whether a call of `boundary` is to be recomputed in backward.

    Warns, once for each boundary, where it would be but for its eval mode.
    """
    if not (boundary.gradient_checkpointing and torch.is_grad_enabled()):
        return False
    if not boundary.training:
        _warn_inactive(boundary)
        return False
    return True


def checkpointed_call(
    boundary: Boundary,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    function: CheckpointFunction,
    hook: ContextFunction | None,
) -> Any:
    """Call `fn(*args, **kwargs)` of an active boundary and recompute it in backward.

    Args:
        boundary: the module whose state is kept.
        fn: its computation.
        args: positional arguments. Tensors in them may be nested in containers, dataclasses and
            geometries.
        kwargs: keyword arguments, likewise.
        function: the checkpoint function, normalised.
        hook: a context function of the block's own, or None.

    Returns:
        What `fn` returns, unchanged.

    Raises:
        TypeError: the boundary keeps state and the checkpoint function is not torch's.
        RuntimeError: the boundary keeps state and runs under `torch.compile`.
        ReplayError: later, out of backward: the replay cannot give the gradient of its forward.
    """
    if torch.compiler.is_compiling():
        return _traced_call(boundary, fn, args, kwargs, function, hook)
    # Dynamo swallows an error raised while it traces with fullgraph=False and runs the frame
    # again in eager mode: there only its callback tells.
    if get_eval_frame_callback() is not None:
        _refuse_untraceable(boundary, hook)
        # Dynamo's guards would hold on to tables of the replay that change behind them.
        eager = torch.compiler.disable(checkpointed_call)  # type: ignore[no-untyped-call]
        return eager(boundary, fn, args, kwargs, function, hook)
    memory = boundary.__dict__.get("_replay_memory") or memory_of(boundary)
    options, plan = boundary._replay_options, memory.plan
    if plan is None or not plan.describes(boundary, options):
        plan = memory.new_plan(boundary, options)
    if not (type(function) is functools.partial and function.func is checkpoint):
        if hook is not None or plan.keeps_state():
            raise TypeError(
                f"{name_of(boundary)} keeps state through its replays (norm statistics or a "
                "context function of its own), which needs torch.utils.checkpoint.checkpoint or a "
                f"functools.partial of it; got the checkpoint function {function!r}."
            )
        return function(fn, *args, **kwargs)
    if plan.fills_late:
        function = functools.partial(function, early_stop=False)
    call: StructuredCall | None = None
    saved: tuple[Any, ...] = args
    if (
        kwargs
        or not PLAIN.issuperset(map(type, args))
        or (len(args) > 1 and len(set(map(id, args))) < len(args))  # self-attention, for one
    ):
        call = StructuredCall(args, kwargs)
        saved = call.saved
    if hook is None:
        # Torch forks its generators in each replay, which takes longer than all that a frame does.
        keeps_generator = function.keywords == DEFAULT_KEYWORDS and current_accelerator() is None
        frame = ReplayFrame(boundary, fn, memory, plan, call, function, keeps_generator)
        if keeps_generator:
            return plain_checkpoint(frame, *saved, use_reentrant=False, preserve_rng_state=False)
        return function(frame, *saved)
    frame = ReplayFrame(boundary, fn, memory, plan, call, function)
    users = function.keywords.get("context_fn") or noop_context_fn
    respect = function.keywords.get(HOOKS_KEYWORD)
    context_fn = compose_context_functions(
        told_of_hooks(users, respect), told_of_hooks(hook, respect)
    )
    return function(frame, *saved, context_fn=context_fn)


def _traced_call(
    boundary: Boundary,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    function: CheckpointFunction,
    hook: ContextFunction | None,
) -> Any:
    _refuse_untraceable(boundary, hook)
    if boundary._replay_options.allow_compile:
        fn = functools.partial(_traced, fn)
    return function(fn, *args, **kwargs)


def _refuse_untraceable(boundary: Boundary, hook: ContextFunction | None) -> None:
    """Refuse `torch.compile` around state that it cannot keep; Dynamo can trace this.

    The compiler functionalises writes to buffers and keeps one update, so norm statistics come
    out right. State that is read as well does not: its recomputation reads the new value.
    """
    allowed = boundary._replay_options.allow_compile
    if (
        hook is not None
        or boundary._reads_and_writes_state
        or has_read_state(boundary)
        or (allowed and not boundary._state_was_watched and has_unknown_state(boundary))
    ):
        raise RuntimeError(
            f"{name_of(boundary)} is a gradient-checkpointing boundary with state that its "
            "forward reads and writes, or may (a buffer that no eager training forward has "
            "watched yet), or with a context function of its own; torch.compile would replay "
            "it wrongly. Compile the modules inside the boundary instead, exclude the boundary "
            "with torch.compiler.disable, or disable its gradient checkpointing."
        )
    if not allowed and any(m.training and has_running_statistics(m) for m in boundary.modules()):
        raise RuntimeError(
            f"{name_of(boundary)} is a gradient-checkpointing boundary that keeps norm "
            "statistics, and torch.compile cannot trace how that state is kept. Compile the "
            "modules inside the boundary instead, exclude the boundary with "
            "torch.compiler.disable, disable its gradient checkpointing, or let the compiler "
            "keep the statistics with allow_compile=True."
        )


def _warn_inactive(boundary: Boundary) -> None:
    if torch.compiler.is_compiling() or boundary._warned_inactive:
        return
    boundary._warned_inactive = True
    warnings.warn(
        f"{name_of(boundary)} has gradient checkpointing enabled but is in eval mode, so its "
        "activations are kept although gradients are recorded. Call train(), or disable "
        "checkpointing where memory does not matter.",
        InactiveBoundaryWarning,
        stacklevel=5,
    )


def _traced(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run `fn` while Dynamo traces it, and only then.

    After a graph break inside the boundary, torch would checkpoint it in eager mode without any of
    its state being kept.
    """
    if not torch.compiler.is_compiling():
        raise RuntimeError(
            "torch.compile could not trace the inside of a gradient-checkpointing boundary (a "
            "graph break; fullgraph=True says where). Remove the break, or exclude the boundary "
            "with torch.compiler.disable: in eager mode its state is kept."
        )
    return fn(*args, **kwargs)
