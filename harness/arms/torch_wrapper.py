"""``checkpoint_wrapper`` of ``torch.distributed``, which FSDP and TorchTitan users apply."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from harness.arms.wrapped import wrap_forwards


def install(module: nn.Module) -> Callable[[bool], None]:
    """Put torch's non-reentrant ``checkpoint_wrapper`` around every boundary.

    Args:
        module: The newly built subject.

    Returns:
        A switch for all its boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """
    return wrap_forwards(module, checkpoint_wrapper)
