"""Activations on the features of a geometry."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from wcn_ckpt.nn.modules.base import FeatureModule


class ReLU(FeatureModule):
    """Rectified linear unit.

    Args:
        inplace: whether to overwrite the features of the input.
    """

    def __init__(self, inplace: bool = False) -> None:
        """See the class."""
        super().__init__()
        self.inplace = inplace

    def transform(self, features: Tensor) -> Tensor:
        """Return max(features, 0)."""
        return F.relu(features, inplace=self.inplace)

    def extra_repr(self) -> str:
        """Show what is not the default."""
        return "inplace=True" if self.inplace else ""


class GELU(FeatureModule):
    """Gaussian error linear unit, exact form."""

    def transform(self, features: Tensor) -> Tensor:
        """Return features * Phi(features)."""
        return F.gelu(features)


class SiLU(FeatureModule):
    """Sigmoid linear unit."""

    def transform(self, features: Tensor) -> Tensor:
        """Return features * sigmoid(features)."""
        return F.silu(features)


class DropPath(FeatureModule):
    """Stochastic depth (Huang et al., 2016): drops whole rows while training.

    Each row (voxel or point) is kept with probability 1 - p, independently of the others, and
    then scaled by 1 / (1 - p).

    Args:
        p: probability that a row becomes zero, in [0, 1].

    Raises:
        TypeError: `p` is no number.
        ValueError: `p` is not a probability.
    """

    def __init__(self, p: float = 0.0) -> None:
        """See the class."""
        super().__init__()
        if not isinstance(p, (int, float)) or isinstance(p, bool):
            raise TypeError(f"p must be a number, got {p!r}")
        if not 0 <= p <= 1:
            raise ValueError(f"p must be a probability between 0 and 1, got {p}")
        self.p = p

    def transform(self, features: Tensor) -> Tensor:
        """Return features with dropped rows."""
        if self.p == 0 or not self.training:
            return features
        if self.p == 1:
            return features * 0
        keep = features.new_empty(len(features), 1).bernoulli_(1 - self.p)
        return features * keep.div_(1 - self.p)

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"
