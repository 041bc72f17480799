"""Take over the calls of torch's checkpoint function, whoever makes them.

Model libraries hold that function under many names: an import, an attribute of a module, a partial
on every layer, a default argument. So no reference is replaced. Torch keeps the version of the
function that Dynamo does not trace in an attribute of the function itself, and calls that: one
entry sees every eager call, and the function stays the object that `torch.compile` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Handler = Callable[..., Any]
"""Called as `handler(function, *args, **kwargs)` in place of torch's checkpoint."""

_UNTRACED = "__dynamo_disable"
_SEEN = object()


def plain_checkpoint() -> Callable[..., Any]:
    """Torch's checkpoint function itself, whose calls nobody takes over."""
    function: Callable[..., Any] = getattr(checkpoint, "__wrapped__", checkpoint)
    return function


def take_over(handler: Handler) -> None:
    """Send every eager call of torch's checkpoint to `handler`, from now on.

    Args:
        handler: gets what the function got; it calls `plain_checkpoint()` to go on.

    Raises:
        RuntimeError: this release of torch calls its function in another way.
    """
    plain = plain_checkpoint()

    def dispatch(function: Any, *args: Any, **kwargs: Any) -> Any:
        return _SEEN if function is _probe else handler(function, *args, **kwargs)

    previous = getattr(plain, _UNTRACED, None)
    untraced = torch.compiler.disable(dispatch)  # type: ignore[no-untyped-call]
    setattr(plain, _UNTRACED, untraced)
    if checkpoint(_probe, use_reentrant=False) is not _SEEN:
        setattr(plain, _UNTRACED, previous)
        raise RuntimeError(
            f"torch {torch.__version__} calls torch.utils.checkpoint.checkpoint in a way that "
            "cannot be taken over. Use make_checkpointable(model, ...) on the blocks, with the "
            "model's own gradient checkpointing off."
        )


def _probe() -> None:
    """Show whether a call of the checkpoint function arrives."""
