"""Take over the calls of torch's checkpoint function, whoever makes them.

Model libraries hold that function under many names: an import, an attribute of a module, a partial
on every layer, a default argument. So no reference is replaced. Torch keeps the version of the
function that Dynamo does not trace in an attribute of the function itself, and calls that: one
entry sees every eager call, and the function stays the object that `torch.compile` knows.

Since torch 2.14 `checkpoint(use_reentrant=False)` decorates a function instead. What it returns
calls the implementation directly, so those calls are seen in the class of that object.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from wcn_ckpt.checkpointing.functions import plain_checkpoint

Handler = Callable[..., Any]
"""Called as `handler(function, *args, **kwargs)` in place of torch's checkpoint."""

_UNTRACED = "__dynamo_disable"
_SEEN = object()


def take_over(handler: Handler) -> Callable[[], None]:
    """Send every eager call of torch's checkpoint to `handler`, from now on.

    Args:
        handler: gets what the function got, also from a function that torch's checkpoint
            decorates; it calls `plain_checkpoint` to go on.

    Returns:
        A function that gives the calls back to whoever got them before.

    Raises:
        RuntimeError: this release of torch calls its function in another way.
    """

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        if not args and kwargs.get("function") is None:
            return plain_checkpoint(**kwargs)  # a decorator is made, or torch says what is missing
        function = args[0] if args else kwargs["function"]
        return _SEEN if function is _probe else handler(*args, **kwargs)

    untraced = torch.compiler.disable(dispatch)  # type: ignore[no-untyped-call]
    give_back = [_set(plain_checkpoint, _UNTRACED, untraced)]
    try:
        seen = checkpoint(_probe, use_reentrant=False) is _SEEN
        if seen and _decorates():
            decorate: Any = checkpoint
            decorated = decorate(use_reentrant=False)(_probe)
            call = _decorated_call(type(decorated).__call__, untraced)
            give_back.append(_set(type(decorated), "__call__", call))
            seen = decorated() is _SEEN
    except (AttributeError, TypeError):
        seen = False
    if not seen:
        _run(give_back)
        raise RuntimeError(
            f"torch {torch.__version__} calls torch.utils.checkpoint.checkpoint in a way that "
            "cannot be taken over. Use make_checkpointable(model, ...) on the blocks, with the "
            "model's own gradient checkpointing off."
        )
    return functools.partial(_run, give_back)


def _decorates() -> bool:
    """Whether torch's checkpoint, called without a function, returns a decorator."""
    first = next(iter(inspect.signature(plain_checkpoint).parameters.values()))
    return first.default is not inspect.Parameter.empty


def _decorated_call(original: Callable[..., Any], handler: Handler) -> Callable[..., Any]:
    """A method for what decorated functions are: it sends their eager calls to `handler`."""

    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        function, keywords = self.function, self.checkpoint_kwargs
        if not keywords.keys().isdisjoint(kwargs):
            # Here the names of torch's keywords are free for arguments of the function.
            return handler(functools.partial(function, **kwargs), *args, **keywords)
        return handler(function, *args, **keywords, **kwargs)

    return call


def _set(owner: Any, name: str, value: Any) -> Callable[[], None]:
    """Set an attribute, and return what sets it back."""
    previous = getattr(owner, name, None)
    setattr(owner, name, value)
    return functools.partial(setattr, owner, name, previous)


def _run(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _probe() -> None:
    """Show whether a call of the checkpoint function arrives."""
