"""Functions that apply an axis value to a newly built subject, in place."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from wcn_ckpt.nn.modules import configure_gradient_checkpointing


def bn_momentum(module: nn.Module, momentum: float | None) -> None:
    """Set the momentum of every BatchNorm in ``module``.

    Args:
        module: The subject.
        momentum: Weight of the newest batch; None for the cumulative average.
    """
    for norm in _batch_norms(module):
        norm.momentum = momentum


def running_stats(module: nn.Module, keep: bool) -> None:
    """Leave every BatchNorm as built, or as if built with ``track_running_stats=False``.

    Args:
        module: The subject.
        keep: Whether running statistics are kept.
    """
    if keep:
        return
    for norm in _batch_norms(module):
        norm.track_running_stats = False
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            norm.register_buffer(name, None)


def enable(module: nn.Module, how: str) -> None:
    """Switch checkpointing on, in one of the ways a user can.

    A module without boundaries is left as it is.

    Args:
        module: The subject, built with ``use_checkpoint=True`` where ``how`` is ``constructor``.
        how: ``constructor`` leaves it at that; ``model_call`` is
            ``gradient_checkpointing_enable()``, ``user_context`` and ``rng_not_preserved`` are the
            same with keywords; ``injected`` hands every boundary a checkpoint function, as
            Transformers does.
    """
    if how == "constructor":
        return
    keywords = _KEYWORDS[how]
    method = getattr(module, "gradient_checkpointing_enable", None)
    if method is None or how == "injected":
        function = functools.partial(checkpoint, use_reentrant=False, **keywords)
        configure_gradient_checkpointing(module, True, function, strict=False)
    else:
        method(keywords or None)


def selective(module: nn.Module, on: bool) -> None:
    """Give every boundary the contexts of a selective checkpointing policy.

    A module without boundaries is left as it is.

    Args:
        module: The subject, with checkpointing enabled.
        on: Whether to.
    """
    if not on:
        return
    boundaries: list[Any] = [m for m in module.modules() if hasattr(m, "gradient_checkpointing")]
    for boundary in boundaries:
        function = boundary._gradient_checkpointing_func
        keywords = {**function.keywords, "context_fn": selective_contexts}
        boundary._gradient_checkpointing_func = functools.partial(function.func, **keywords)


def selective_contexts() -> tuple[Any, Any]:
    """Return torch's contexts that keep the results of some operations and recompute the rest.

    Those of linear layers and activations: nothing writes them in place, which torch refuses.
    """
    aten = torch.ops.aten
    kept = [aten.addmm, aten.relu, aten.gelu, aten.silu, aten.tanh]
    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(  # type: ignore[no-untyped-call]
        [operation.default for operation in kept]
    )
    return contexts


def user_contexts() -> tuple[Any, Any]:
    """Return what a user may pass as ``context_fn``: profiler labels for forward and replay."""
    return (
        torch.profiler.record_function("user forward"),
        torch.profiler.record_function("user replay"),
    )


_KEYWORDS: dict[str, dict[str, Any]] = {
    "model_call": {},
    "injected": {},
    "user_context": {"context_fn": user_contexts},
    "rng_not_preserved": {"preserve_rng_state": False},
}


def _batch_norms(module: nn.Module) -> list[_BatchNorm]:
    return [child for child in module.modules() if isinstance(child, _BatchNorm)]
