"""Modules that cannot be made boundaries in place, and why."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.module import _forward_unimplemented

from wcn_ckpt.checkpointing.made import is_made


class _Refused(NamedTuple):
    """A class, by name since its Python module may not be loaded, and why it is refused."""

    python_module: str
    name: str
    reason: str


_USE_INNER = "make the block inside it a boundary, before or after it is wrapped"

_CLASSES = (
    _Refused(
        "torch.jit",
        "ScriptModule",
        "a scripted module runs compiled code and not the forward of its instance; make the "
        "module a boundary without scripting it",
    ),
    _Refused(
        "torch.fx",
        "GraphModule",
        "a GraphModule is rebuilt from its code when it is copied or pickled, and a copy would "
        "silently be no boundary; make a module that contains it a boundary",
    ),
    _Refused(
        "torch._dynamo.eval_frame",
        "OptimizedModule",
        "it was returned by torch.compile, which cannot trace how state is kept; make a module "
        "that contains it a boundary",
    ),
    _Refused(
        "torch.nn.parallel",
        "DistributedDataParallel",
        f"it reduces gradients around a whole forward; {_USE_INNER}",
    ),
    _Refused("torch.nn", "DataParallel", f"it calls shallow copies of its module; {_USE_INNER}"),
    _Refused(
        "torch.distributed.fsdp",
        "FullyShardedDataParallel",
        f"it gathers and frees its parameters around each forward; {_USE_INNER}",
    ),
    _Refused(
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "CheckpointWrapper",
        "it checkpoints the block inside it already; make that a boundary instead of wrapping it",
    ),
)


def loaded_class(python_module: str, name: str) -> type[Any] | None:
    """A class, if its Python module was imported; without importing anything."""
    found: type[Any] | None = getattr(sys.modules.get(python_module), name, None)
    return found


def why_not_checkpointable(module: nn.Module) -> str | None:
    """Why a module cannot be made a boundary in place; None if it can."""
    if is_made(module) or hasattr(module, "_gradient_checkpointed_call"):
        return "it is a boundary already"
    if hasattr(module, "gradient_checkpointing"):
        return (
            "it has gradient checkpointing of its own, which would recompute it twice; make that "
            "safe with preserve_replay_state(model)"
        )
    for python_module, name, reason in _CLASSES:
        cls = loaded_class(python_module, name)
        if cls is not None and isinstance(module, cls):
            return reason
    return _why_not_forward(module)


def _why_not_forward(module: nn.Module) -> str | None:
    forward: Any = inspect.getattr_static(type(module), "forward")
    replaced: Callable[..., Any] | None = vars(module).get("forward")
    if replaced is None and forward is _forward_unimplemented:
        return "its class has no forward, so it is never called; make its children boundaries"
    if hasattr(type(forward), "__set__"):
        return "its forward is a property of its class, which hides that of the instance"
    if isinstance(forward, staticmethod | classmethod) or not hasattr(forward, "__get__"):
        return f"its forward is no method but a {type(forward).__name__}"
    body = inspect.unwrap(replaced or forward)
    if inspect.isgeneratorfunction(body) or inspect.iscoroutinefunction(body):
        return "its forward is a generator or a coroutine, which runs after it has returned"
    return None
