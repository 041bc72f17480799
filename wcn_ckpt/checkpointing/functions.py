"""What may be stored as the checkpoint function of a boundary, and how it is normalised."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.checkpoint import checkpoint, noop_context_fn

from wcn_ckpt.checkpointing.contexts import HOOKS_KEYWORD

CheckpointFunction = Any
"""A callable `function(fn, *args, **kwargs)`; torch's own is always stored as a partial."""

plain_checkpoint: Callable[..., Any] = getattr(checkpoint, "__wrapped__", checkpoint)
"""Torch's checkpoint without the wrapper that keeps Dynamo out: for calls that nothing traces."""

_REENTRANT_REMEDY = (
    "Reentrant checkpointing is not supported: it replays the block under no_grad bookkeeping of "
    "its own, drops gradients of nested inputs and cannot take context functions. Use "
    "use_reentrant=False; through Transformers, whose default it was before release 5, pass "
    'gradient_checkpointing_kwargs={"use_reentrant": False}.'
)


def _torch_checkpoint_keywords() -> frozenset[str]:
    parameters = inspect.signature(checkpoint).parameters.values()
    named = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    return frozenset(named | {"preserve_rng_state"})


TORCH_KEYWORDS = _torch_checkpoint_keywords()

DEFAULT_KEYWORDS = {"use_reentrant": False}
"""Keywords of a stored checkpoint function that asks for nothing in particular."""


def is_torch_checkpoint(function: CheckpointFunction) -> bool:
    """Whether `function` is `torch.utils.checkpoint.checkpoint` or a `functools.partial` of it."""
    return (function.func if isinstance(function, functools.partial) else function) is checkpoint


def normalize_checkpoint_function(function: CheckpointFunction) -> CheckpointFunction:
    """Return `function` as a boundary stores it.

    Args:
        function: `torch.utils.checkpoint.checkpoint`, a `functools.partial` of it, or any other
            callable with the signature `function(fn, *args, **kwargs)`.

    Returns:
        A partial of torch's checkpoint with `use_reentrant=False` for the first two, with the
        other arguments of the partial kept; any other callable unchanged.

    Raises:
        TypeError: `function` is not callable.
        ValueError: a partial of torch's checkpoint asks for the reentrant implementation, or
            carries a keyword that torch's checkpoint would pass on to the block.
    """
    if not callable(function):
        raise TypeError(
            f"The checkpoint function must be callable, got {function!r} of type "
            f"{type(function).__name__}. Pass torch.utils.checkpoint.checkpoint, a "
            "functools.partial of it, or None for the default."
        )
    if not is_torch_checkpoint(function):
        return function
    if not isinstance(function, functools.partial):
        return functools.partial(checkpoint, use_reentrant=False)
    keywords = _non_reentrant(function.keywords)
    return functools.partial(checkpoint, *function.args, **keywords)


def checkpoint_function_from_kwargs(
    gradient_checkpointing_kwargs: Mapping[str, Any] | None,
) -> CheckpointFunction:
    """Build the checkpoint function that `gradient_checkpointing_enable(kwargs)` stands for.

    Args:
        gradient_checkpointing_kwargs: keywords of `torch.utils.checkpoint.checkpoint`, or None.
            The mapping is not changed.

    Raises:
        TypeError: the argument is neither None nor a mapping.
        ValueError: a keyword is unknown to torch's checkpoint, or `use_reentrant` is true.
    """
    if gradient_checkpointing_kwargs is None:
        gradient_checkpointing_kwargs = {}
    if not isinstance(gradient_checkpointing_kwargs, Mapping):
        raise TypeError(
            "gradient_checkpointing_kwargs must be a dict of keywords of "
            f"torch.utils.checkpoint.checkpoint or None, got {gradient_checkpointing_kwargs!r}."
        )
    return functools.partial(checkpoint, **_non_reentrant(gradient_checkpointing_kwargs))


def _non_reentrant(keywords: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [key for key in keywords if key not in TORCH_KEYWORDS]
    if unknown:
        raise ValueError(
            f"Unknown gradient checkpointing keyword {unknown[0]!r}: torch's checkpoint would pass "
            f"it on to the block. Known keywords: {', '.join(sorted(TORCH_KEYWORDS))}."
        )
    if keywords.get("use_reentrant"):
        raise ValueError(f"Got use_reentrant={keywords['use_reentrant']!r}. {_REENTRANT_REMEDY}")
    for switch in ("preserve_rng_state", "early_stop", "debug"):
        if not isinstance(keywords.get(switch, False), bool):
            raise TypeError(f"{switch} must be True or False, got {keywords[switch]!r}.")
    respect = keywords.get(HOOKS_KEYWORD)
    if not (respect is None or isinstance(respect, bool)):
        raise TypeError(f"{HOOKS_KEYWORD} must be True, False or None, got {respect!r}.")
    context_fn = keywords.get("context_fn", noop_context_fn)
    if not callable(context_fn):
        raise TypeError(
            f"context_fn must be a function that returns (forward_context, recompute_context), got "
            f"{context_fn!r}."
        )
    return {**keywords, "use_reentrant": False}
