"""Other checkpoint wrappers around whole boundaries, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from wcn_ckpt.nn.modules import configure_gradient_checkpointing


class Computation(nn.Module):
    """The forward of another module, as a module without parameters.

    Wrapping it leaves names and structure of the other module as they are.

    Args:
        module: The other module.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__["of"] = module  # not registered

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the forward that the class of the other module has."""
        module = self.__dict__["of"]
        return type(module).forward(module, *args, **kwargs)


def boundaries_of(module: nn.Module) -> list[nn.Module]:
    """Return the boundaries below a module, with their own checkpointing switched off.

    Raises:
        ValueError: If there is none.
    """
    found = [child for child in module.modules() if hasattr(child, "_gradient_checkpointed_call")]
    if not found:
        raise ValueError(f"{type(module).__name__} has no boundary to checkpoint")
    configure_gradient_checkpointing(module, False)
    return found


def wrap_forwards(
    module: nn.Module, wrap: Callable[[Computation], Callable[..., Any]]
) -> Callable[[bool], None]:
    """Let every boundary run through a wrapper of its forward.

    Args:
        module: The newly built subject.
        wrap: A module that computes what the boundary does -> what is called in place of it.

    Returns:
        A switch for all the boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """
    wrapped = {boundary: wrap(Computation(boundary)) for boundary in boundaries_of(module)}

    def switch(on: bool) -> None:
        for boundary, forward in wrapped.items():
            if on:
                boundary.__dict__["forward"] = forward
            else:
                boundary.__dict__.pop("forward", None)

    switch(True)
    return switch
