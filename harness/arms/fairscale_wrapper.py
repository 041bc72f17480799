"""fairscale's ``checkpoint_wrapper``: reentrant, with BatchNorm switched off in the first pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from harness.arms.wrapped import boundaries_of
from matrix.extras import import_extra

_fairscale: Any = import_extra("fairscale.nn.checkpoint", "the arm fairscale_wrapper", "peers")


def install(module: nn.Module) -> Callable[[bool], None]:
    """Put fairscale's wrapper around every boundary; it changes the modules in place.

    Args:
        module: The newly built subject.

    Returns:
        A switch for all its boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """
    boundaries = boundaries_of(module)
    for boundary in boundaries:
        _fairscale.checkpoint_wrapper(boundary)
    wrapped = {boundary: boundary.__dict__["forward"] for boundary in boundaries}

    def switch(on: bool) -> None:
        for boundary, forward in wrapped.items():
            if on:
                boundary.__dict__["forward"] = forward
            else:
                boundary.__dict__.pop("forward", None)

    return switch
