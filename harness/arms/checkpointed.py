"""wcn_ckpt's own checkpointing."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from wcn_ckpt.nn.modules import configure_gradient_checkpointing


def install(module: nn.Module) -> Callable[[bool], None]:
    """Enable every boundary of the module.

    Args:
        module: The newly built subject.

    Returns:
        A switch for all its boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """

    def switch(on: bool) -> None:
        configure_gradient_checkpointing(module, on)

    switch(True)
    return switch
