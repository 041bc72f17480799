"""wcn_ckpt's own checkpointing."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from wcn_ckpt.nn.modules import configure_gradient_checkpointing


def install(module: nn.Module) -> Callable[[bool], None]:
    """Leave the boundaries enabled as they are: how they were enabled is part of the case.

    Args:
        module: The newly built subject, with its boundaries enabled.

    Returns:
        A switch for all its boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """

    def switch(on: bool) -> None:
        configure_gradient_checkpointing(module, on)

    if not any(hasattr(child, "gradient_checkpointing") for child in module.modules()):
        raise ValueError(
            f"{type(module).__name__} has no boundary to checkpoint: derive a block in it from "
            "GradientCheckpointingMixin"
        )
    return switch
