"""Models of several parts, of which some are boundaries, frozen, nested or tied to other ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from matrix.blocks.base import Boundary
from matrix.blocks.readme import MyBlock
from matrix.blocks.state import DropoutBlock
from wcn_ckpt.nn.modules import GradientCheckpointingModelMixin


class Stack(GradientCheckpointingModelMixin, nn.Module):
    """A layer, two boundaries and another layer.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundaries start enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(channels, channels)
        self.blocks = nn.Sequential(
            DropoutBlock(channels, use_checkpoint), MyBlock(channels, use_checkpoint)
        )
        self.last = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self.last(self.blocks(self.first(x)))
        return y


class Nested(Boundary):
    """A boundary that holds a boundary with a norm, and has a norm itself.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundaries start enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.inner = MyBlock(channels, use_checkpoint)
        self.linear = nn.Linear(channels, channels)
        self.norm = nn.BatchNorm1d(channels)

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.linear(self.inner(x))).tanh()
        return y


class FrozenPart(GradientCheckpointingModelMixin, nn.Module):
    """A frozen block that stays in eval mode, as fine-tuning keeps it, and one that is trained.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundaries start enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__()
        self.frozen = MyBlock(channels, use_checkpoint).requires_grad_(False)
        self.trained = MyBlock(channels, use_checkpoint)
        self.head = nn.Linear(channels, channels)
        self.head.bias.requires_grad_(False)

    def train(self, mode: bool = True) -> FrozenPart:
        """Switch the trained part alone."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self.head(self.trained(self.frozen(x)))
        return y


class HalfFrozen(Boundary):
    """A boundary of which one layer is frozen.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.frozen = nn.Linear(channels, channels).requires_grad_(False)
        self.trained = nn.Linear(channels, channels)

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.trained(self.frozen(x).tanh())
        return y


class InitializedFromData(Boundary):
    """Shifts its input by the mean of the first batch it gets, as an activation norm does.

    Kingma and Dhariwal, "Glow: Generative Flow with Invertible 1x1 Convolutions", NeurIPS 2018.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    shift: Tensor

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.linear = nn.Linear(channels, channels)
        self.register_buffer("shift", torch.zeros(channels))
        self.initialized = False

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        if not self.initialized:
            self.initialized = True
            with torch.no_grad():
                self.shift.copy_(x.float().mean(0))
        return super().forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear((x - self.shift).sin())
        return y


class MeanOverRanks(Boundary):
    """Subtracts the mean over the rows of all ranks: a collective in the block.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(use_checkpoint)
        self.linear = nn.Linear(channels, channels)

    def _forward(self, x: Tensor) -> Tensor:
        mean = x.detach().float().mean(0)
        dist.all_reduce(mean)
        y: Tensor = self.linear(x - mean / dist.get_world_size()).tanh()
        return y
