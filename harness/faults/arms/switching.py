"""Checkpointing that is on where it should not be, off where it should be, or seen from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from harness.arms.checkpointed import install as install_checkpointed
from harness.arms.torch_checkpoint import Contexts, replace_calls, replace_checkpoint
from harness.faults.arms.contexts import Switch
from wcn_ckpt.nn.modules import configure_gradient_checkpointing


def reaching_nothing(module: nn.Module) -> Switch:
    """Set a flag that no boundary reads."""
    configure_gradient_checkpointing(module, False)
    module._use_activation_checkpointing = True  # type: ignore[assignment]
    return lambda on: None


def reaching_the_first(module: nn.Module) -> Switch:
    """Switch on the first boundary and no other."""
    boundaries: list[Any] = [m for m in module.modules() if hasattr(m, "gradient_checkpointing")]

    def switch(on: bool) -> None:
        for number, boundary in enumerate(boundaries):
            boundary.gradient_checkpointing = on and number == 0

    switch(True)
    return switch


def in_eval_mode(module: nn.Module) -> Switch:
    """Replay boundaries in eval mode too."""

    def replacement(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return checkpoint(fn, *args, use_reentrant=False, **kwargs)

    for child in module.modules():
        if hasattr(child, "_gradient_checkpointed_call") and not child.training:
            object.__setattr__(child, "_gradient_checkpointed_call", replacement)
    return install_checkpointed(module)


def twice(module: nn.Module) -> Switch:
    """Checkpoint the checkpointed call of every boundary, as a trainer and a model may both do."""

    def call(boundary: nn.Module, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        def inner(*given: Any) -> Any:
            return checkpoint(fn, *given, use_reentrant=False, **kwargs)

        return checkpoint(inner, *args, use_reentrant=True)

    return replace_calls(module, call)


def one_shot_context(module: nn.Module) -> Switch:
    """Hand torch a replay context that can be entered once."""

    @contextmanager
    def once() -> Iterator[None]:
        with torch.profiler.record_function("replay"):
            yield

    def contexts(boundary: nn.Module) -> Contexts:
        return nullcontext(), once()

    return replace_checkpoint(module, contexts)


def wrapped_in_place(module: nn.Module) -> Switch:
    """Put a wrapper in the place of every boundary below the subject, so that names change."""
    for path, child in list(module.named_modules()):
        if path and hasattr(child, "_gradient_checkpointed_call"):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, _Wrapper(child))
    return install_checkpointed(module)


def state_in_a_buffer(module: nn.Module) -> Switch:
    """Keep the checkpoint's own state in a persistent buffer of the module."""

    def register(*_: object) -> None:
        module.register_buffer("checkpoint_state", torch.zeros(1))

    module.register_forward_hook(register)
    return install_checkpointed(module)


class _Wrapper(nn.Module):
    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.wrapped(*args, **kwargs)
