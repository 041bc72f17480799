"""Models whose boundaries get inputs by keyword or in containers, or that change them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from wcn_ckpt.nn.modules import GradientCheckpointingMixin


class _Model(GradientCheckpointingMixin, nn.Module):
    """A first layer, and a last one that is a boundary.

    Args:
        channels: Width of input and output.
        use_checkpoint: Whether the boundary starts enabled.
    """

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        self.first = nn.Linear(channels, channels)
        self.last = nn.Linear(channels, channels)


class KeywordInput(_Model):
    """Passes a scale to its boundary by keyword."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self._gradient_checkpointed_call(self._forward, x, scale=self.first(x))
        return y

    def _forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        y: Tensor = self.last(x * scale)
        return y


class NestedInput(_Model):
    """Passes rows and scale to its boundary in a dictionary."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        inputs = {"rows": x, "scale": self.first(x)}
        y: Tensor = self._gradient_checkpointed_call(self._forward, inputs)
        return y

    def _forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        y: Tensor = self.last(inputs["rows"] * inputs["scale"])
        return y


class ReusedWorkspace(_Model):
    """Overwrites the tensor that it passed by keyword, once the boundary has returned.

    Autograd saves nothing of it, so without checkpointing no harm is done.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        workspace = x.detach().abs()
        y: Tensor = self._gradient_checkpointed_call(self._forward, x, offset=workspace)
        workspace.zero_()
        return y

    def _forward(self, x: Tensor, *, offset: Tensor) -> Tensor:
        y: Tensor = self.last((self.first(x) + offset).sin())
        return y


class ScaledInPlace(_Model):
    """Halves a tensor of a dictionary in place, inside its boundary."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self._gradient_checkpointed_call(self._forward, {"rows": self.first(x)})
        return y

    def _forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        y: Tensor = self.last(inputs["rows"].mul_(0.5)).tanh()
        return y


class WrittenBack(_Model):
    """Puts what its boundary computed in the place of the input, in a dictionary."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        state: dict[str, Tensor] = {"rows": self.first(x)}
        self._gradient_checkpointed_call(self._forward, state)
        return state["rows"]

    def _forward(self, state: dict[str, Tensor]) -> None:
        state["rows"] = self.last(state["rows"]).tanh()


class SharedCast(_Model):
    """Uses one weight before its boundary and in it: autocast casts it once."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = self._gradient_checkpointed_call(self._forward, self.last(x))
        return y

    def _forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.first(x).tanh())
        return y


class LateBinding(_Model):
    """Checkpoints closures over a loop variable, which all see its last value in backward."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels) to (N, channels)."""
        y: Tensor = x
        for layer in (self.first, self.last):
            y = self._gradient_checkpointed_call(lambda rows: layer(rows).tanh(), y)  # noqa: B023
        return y


def rows_without_gradient(
    *, seed: int, rank: int, microbatch: int, channels: int, rows: int = 32
) -> Tensor:
    """Return random rows that require no gradient.

    Args:
        seed: Seed of the run.
        rank: The rank that gets them.
        microbatch: Number of the microbatch on that rank.
        channels: Number of features.
        rows: Number of rows.

    Returns:
        Float32 (rows, channels).
    """
    generator = torch.Generator().manual_seed(1000 * seed + 100 * rank + microbatch)
    return torch.randn(rows, channels, generator=generator)
