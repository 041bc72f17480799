"""A boundary around a whole subject, so that boundaries nest."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from wcn_ckpt.nn.modules import GradientCheckpointingMixin, configure_gradient_checkpointing


class Nested(GradientCheckpointingMixin, nn.Module):
    """A boundary around another module, which may hold boundaries of its own.

    It squashes what the module returns, so that it has something of its own to recompute.

    Args:
        inner: The module.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._init_gradient_checkpointing()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module and apply tanh to every tensor with a gradient in what it returns."""
        return self._gradient_checkpointed_call(self._forward, *args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map_only(Tensor, _squashed, self.inner(*args, **kwargs))


def _squashed(tensor: Tensor) -> Tensor:
    return tensor.tanh() if tensor.requires_grad else tensor


def nest(module: nn.Module, how: str) -> nn.Module:
    """Return the module itself, or a boundary around it that is enabled as its own ones are.

    Args:
        module: The subject, with checkpointing enabled.
        how: ``flat`` or ``nested``.
    """
    if how == "flat":
        return module
    outer = Nested(module)
    enabled = (m for m in module.modules() if getattr(m, "gradient_checkpointing", False))
    own = next(enabled, None)
    if own is not None:
        function = getattr(own, "_gradient_checkpointing_func", None)
        configure_gradient_checkpointing(outer, True, function)
    return outer
