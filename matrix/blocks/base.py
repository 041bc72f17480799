"""What the blocks of the lab have in common."""

from __future__ import annotations

from torch import Tensor, nn

from wcn_ckpt.nn.modules import GradientCheckpointingMixin


class Boundary(GradientCheckpointingMixin, nn.Module):
    """A boundary around ``_forward``, which a subclass defines.

    Args:
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, use_checkpoint: bool = False) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)

    def forward(self, x: Tensor) -> Tensor:
        """Run ``_forward`` as a boundary."""
        y: Tensor = self._gradient_checkpointed_call(self._forward, x)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError
