"""Make the gradient checkpointing that a model already has safe."""

from __future__ import annotations

import functools

from torch import nn

from wcn_ckpt.checkpointing.functions import is_torch_checkpoint
from wcn_ckpt.checkpointing.preserved import CURE, PreservedReplayState, table
from wcn_ckpt.checkpointing.refusals import loaded_class
from wcn_ckpt.checkpointing.replay.options import ReplayOptions, StateDeclaration

_REFUSED = (
    (
        "torch.jit",
        "ScriptModule",
        "a scripted module runs compiled code, which makes no checkpoint call of Python",
    ),
    (
        "torch._dynamo.eval_frame",
        "OptimizedModule",
        "it was returned by torch.compile, which traces its checkpoint calls; compile the modules "
        "inside them instead",
    ),
    (
        "torch.distributed.fsdp",
        "FullyShardedDataParallel",
        "it replaces its parameters around each forward, so that a replay cannot tell whether they "
        "moved; use fully_shard, or wrap the model after preserve_replay_state(model, guard=False)",
    ),
)


def preserve_replay_state(
    model: nn.Module,
    *,
    state: StateDeclaration | None = None,
    learn: bool = True,
    guard: bool = True,
    strict_state: bool = False,
) -> PreservedReplayState:
    """Make the gradient checkpointing that a model already has safe.

    Every call of `torch.utils.checkpoint.checkpoint` that recomputes modules of `model` gets what a
    boundary of ours has: norm statistics, other written buffers and generators are left as the
    forward left them, and a replay on moved ground is refused. It does not matter how the model
    calls it (Transformers' flag, timm's `checkpoint_seq`, torchvision's closures, code of your own)
    nor whether its checkpointing is on yet::

        preserve_replay_state(model)
        model.gradient_checkpointing_enable()

    Nothing in the model is replaced; it gets one forward pre-hook. Copies and pickles of the model
    are preserved too.

    Args:
        model: root of the tree; calls that recompute modules below it are the ones concerned.
        state: buffers to keep besides those found and learned: a name, several names, or a mapping
            from name to `"written"` or `"read_and_written"`. See `ReplayOptions`.
        learn: find written buffers by watching forwards.
        guard: refuse a replay when something that the forward read has moved.
        strict_state: raise where a replay writes a buffer that nothing preserves.

    Returns:
        The number of `calls` kept so far, and `undo()`; a context manager that undoes it.

    Raises:
        TypeError: `model` is not an `nn.Module`, or an option has the wrong type.
        ValueError: the model cannot be kept right: it is scripted, compiled or wrapped by the
            first FSDP, its checkpointing is reentrant, or part of it is preserved already. A
            reentrant call that is only seen later raises in the forward.
        RuntimeError: later, in a training forward under `torch.compile`; or at once if this
            release of torch does not let its calls be taken over.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"preserve_replay_state needs an nn.Module, got {model!r}.")
    options = ReplayOptions(state, learn, guard, strict_state)
    for path, module in model.named_modules():
        reason = _why_not(module)
        if reason is not None:
            where = f"{type(module).__name__} {path!r}" if path else f"The {type(module).__name__}"
            raise ValueError(f"{where} cannot keep its replay state: {reason}.")
    preserved = PreservedReplayState(model, options)
    model.register_forward_pre_hook(preserved)
    return preserved


def undo_preserve_replay_state(model: nn.Module) -> int:
    """Undo `preserve_replay_state` everywhere in a tree, for instance in a copy of a model.

    Args:
        model: root of the tree.

    Returns:
        The number of preserved models found in it.

    Raises:
        TypeError: `model` is not an `nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"undo_preserve_replay_state needs an nn.Module, got {model!r}.")
    preserved = [
        hook
        for module in model.modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, PreservedReplayState)
    ]
    for hook in preserved:
        hook.undo()
    return len(preserved)


def _why_not(module: nn.Module) -> str | None:
    if table.owner(module) is not None:
        return "preserve_replay_state was called on it, or on a model around it, before"
    for python_module, name, reason in _REFUSED:
        cls = loaded_class(python_module, name)
        if cls is not None and isinstance(module, cls):
            return reason
    function = vars(module).get("_gradient_checkpointing_func")
    if getattr(module, "gradient_checkpointing", False) and is_torch_checkpoint(function):
        keywords = function.keywords if isinstance(function, functools.partial) else {}
        if keywords.get("use_reentrant") is not False:
            return f"its checkpointing is reentrant (use_reentrant=True). {CURE.rstrip('.')}"
    return None
