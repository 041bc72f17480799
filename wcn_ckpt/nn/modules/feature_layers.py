"""Layers of torch on the features of a geometry."""

from __future__ import annotations

from torch import Tensor, nn

from wcn_ckpt.nn.modules.base import FeatureModule
from wcn_ckpt.nn.modules.sparse_conv import check_positive


class Linear(FeatureModule):
    """Linear layer on each row; its parameters are `block.weight` and `block.bias`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        bias: whether to add a bias.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive.
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        """See the class."""
        super().__init__()
        check_positive(in_channels, "in_channels")
        check_positive(out_channels, "out_channels")
        self.block = nn.Linear(in_channels, out_channels, bias=bias)

    def transform(self, features: Tensor) -> Tensor:
        """Return features (N, out_channels)."""
        out: Tensor = self.block(features)
        return out


class LayerNorm(FeatureModule):
    """Layer normalization of each row; its parameters are `norm.weight` and `norm.bias`.

    Args:
        channels: channels of the input.
        eps: added to the variance.
        elementwise_affine: whether to scale and shift.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive.
    """

    def __init__(self, channels: int, eps: float = 1e-5, elementwise_affine: bool = True) -> None:
        """See the class."""
        super().__init__()
        check_positive(channels, "channels")
        self.norm = nn.LayerNorm(channels, eps=eps, elementwise_affine=elementwise_affine)

    def transform(self, features: Tensor) -> Tensor:
        """Return normalized features."""
        out: Tensor = self.norm(features)
        return out


class BatchNorm(FeatureModule):
    """Batch normalization over all rows of all clouds; its state is under `norm.`.

    Args:
        channels: channels of the input.
        eps: added to the variance.
        momentum: weight of a new batch in the running statistics; `None` for a plain average.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float | None = 0.1) -> None:
        """See the class."""
        super().__init__()
        check_positive(channels, "channels")
        self.norm = nn.BatchNorm1d(channels, eps=eps, momentum=momentum)

    def transform(self, features: Tensor) -> Tensor:
        """Return normalized features."""
        out: Tensor = self.norm(features)
        return out
