"""The block that the README shows, with types."""

from __future__ import annotations

from torch import Tensor, nn

from wcn_ckpt.nn.modules import GradientCheckpointingMixin


class MyBlock(GradientCheckpointingMixin, nn.Module):
    """A linear layer, BatchNorm and ReLU around a shortcut.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        self.linear = nn.Linear(channels, channels)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self._gradient_checkpointed_call(self._forward, x)
        return y

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.norm(self.linear(x)).relu()
        return y
