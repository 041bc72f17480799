"""The layer class of Transformers, with its gradient checkpointing flag on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from harness.arms.wrapped import Computation, wrap_forwards
from matrix.extras import import_extra

_layers: Any = import_extra("transformers.modeling_layers", "the arm transformers_layer", "hf")


def install(module: nn.Module) -> Callable[[bool], None]:
    """Run every boundary as a ``GradientCheckpointingLayer``, as Transformers enables it.

    Args:
        module: The newly built subject.

    Returns:
        A switch for all its boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """
    return wrap_forwards(module, _layer)


def _layer(computation: Computation) -> Any:
    class Layer(_layers.GradientCheckpointingLayer):  # type: ignore[misc]  # untyped there
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return computation(*args, **kwargs)

    layer = Layer()
    layer.gradient_checkpointing = True
    layer._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=False)
    return layer
