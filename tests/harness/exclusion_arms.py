"""Arms that prove exclusions: what torch itself does there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Switch = Callable[[bool], None]


def bare(module: nn.Module) -> Switch:
    """Call the checkpoint function of each boundary with its keywords, and nothing of ours."""
    for boundary in module.modules():
        if hasattr(boundary, "_gradient_checkpointed_call"):
            object.__setattr__(boundary, "_gradient_checkpointed_call", _BareCall(boundary))
    return lambda on: None


class _BareCall:
    def __init__(self, boundary: nn.Module) -> None:
        self._function = boundary._gradient_checkpointing_func

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._function(fn, *args, **kwargs)


def no_gradients(module: nn.Module) -> Switch:
    """Raise where autograd.grad finds a gradient of a parameter."""
    original = torch.autograd.grad

    def grad(outputs: Any, inputs: list[Any], **keywords: Any) -> Any:
        found = original(outputs, inputs, **keywords)
        own = {id(parameter) for parameter in module.parameters()}
        reached = [i for i, g in zip(inputs, found, strict=True) if id(i) in own and g is not None]
        torch.autograd.grad = original
        if reached:
            raise ArithmeticError(f"{len(reached)} parameters have a gradient")
        return found

    torch.autograd.grad = grad
    from harness.arms.ordinary import install

    return install(module)
