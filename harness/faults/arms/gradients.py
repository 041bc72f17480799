"""Gradients that get lost on their way through a checkpoint, or appear where none should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from harness.arms.checkpointed import install as install_checkpointed
from harness.arms.torch_checkpoint import replace_calls
from harness.faults.arms.contexts import Switch


def reentrant(module: nn.Module) -> Switch:
    """Use the reentrant variant of torch's checkpoint."""

    def call(boundary: nn.Module, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return checkpoint(lambda *given: fn(*given, **kwargs), *args, use_reentrant=True)

    return replace_calls(module, call)


def detached_output(module: nn.Module) -> Switch:
    """Return the outputs of the first boundary without their graph."""
    first = next(m for m in module.modules() if hasattr(m, "_gradient_checkpointed_call"))
    checkpointed: Any = first._gradient_checkpointed_call

    def call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return _detached(checkpointed(fn, *args, **kwargs))

    object.__setattr__(first, "_gradient_checkpointed_call", call)
    return install_checkpointed(module)


def keywords_detached(module: nn.Module) -> Switch:
    """Pass tensors among the keyword arguments on without their graph."""

    def call(boundary: nn.Module, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return checkpoint(fn, *args, use_reentrant=False, **_detached(kwargs))

    return replace_calls(module, call)


def nested_detached(module: nn.Module) -> Switch:
    """Pass tensors inside containers on without their graph."""

    def call(boundary: nn.Module, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        flat = (arg if isinstance(arg, Tensor) else _detached(arg) for arg in args)
        return checkpoint(fn, *flat, use_reentrant=False, **kwargs)

    return replace_calls(module, call)


def thawed(module: nn.Module) -> Switch:
    """Let every parameter of a boundary require a gradient, so that its output has one."""

    def call(boundary: nn.Module, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        boundary.requires_grad_(True)
        return checkpoint(fn, *args, use_reentrant=False, **kwargs)

    return replace_calls(module, call)


def _detached(structure: Any) -> Any:
    """Return a structure, dictionaries included, with its tensors detached."""
    if isinstance(structure, Mapping):
        return {name: _detached(value) for name, value in structure.items()}
    return pytree.tree_map_only(Tensor, Tensor.detach, structure)
