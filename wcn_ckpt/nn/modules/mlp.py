"""Feed-forward layers of transformer blocks."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from wcn_ckpt.geometry import Geometry
from wcn_ckpt.nn.modules.base import FeatureModule, SpatialModule
from wcn_ckpt.nn.modules.checks import check_positive

T = TypeVar("T", bound=Geometry | Tensor)


class MLP(FeatureModule):
    """Two linear layers with a GELU between them, on each row of a geometry.

    Args:
        channels: channels of input and output.
        hidden_channels: channels in between.
        drop: probability of dropping a channel of a row, after the activation and at the end.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or `drop` is no probability.
    """

    def __init__(self, channels: int, hidden_channels: int, drop: float = 0.0) -> None:
        """See the class."""
        super().__init__()
        check_positive(channels, "channels")
        check_positive(hidden_channels, "hidden_channels")
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden_channels),
            nn.GELU(),
            nn.Dropout(drop),
            nn.Linear(hidden_channels, channels),
            nn.Dropout(drop),
        )

    def transform(self, features: Tensor) -> Tensor:
        """Return features (N, channels)."""
        out: Tensor = self.mlp(features)
        return out


class FeedForward(SpatialModule):
    """Gated feed-forward layer `w2(silu(w1 x) * w3 x)` without biases, on a geometry or a tensor.

    Shazeer, "GLU Variants Improve Transformer", 2020.

    Args:
        dim: channels of input and output.
        hidden_dim: channels in between.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        """See the class."""
        super().__init__()
        check_positive(dim, "dim")
        check_positive(hidden_dim, "hidden_dim")
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x: T) -> T:
        """Return the same kind of value, with the same number of channels.

        Raises:
            TypeError: `x` is neither a geometry nor a tensor.
        """
        if isinstance(x, Geometry):
            return x.replace_features(self._transform(x.feature_tensor))
        if isinstance(x, Tensor):
            return self._transform(x)  # type: ignore[return-value]  # T is Tensor here
        raise TypeError(f"FeedForward takes a geometry or a tensor, got {type(x).__name__}")

    def _transform(self, rows: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(rows)) * self.w3(rows))
        return out
