"""Normalizations that compute in float32, whatever the dtype around them.

Inputs of half precision are widened, normalized and rounded back. Double precision stays double.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wcn_ckpt.nn.modules.sparse_conv import check_positive


class LayerNorm32(nn.LayerNorm):
    """`torch.nn.LayerNorm` computed in float32 and rounded to the dtype of the input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return normalized values in the shape and dtype of the input.

        Raises:
            TypeError: the input is not floating point.
        """
        wide = _widened(input, self)
        weight, bias = _like(self.weight, wide), _like(self.bias, wide)
        normed = F.layer_norm(wide, self.normalized_shape, weight, bias, self.eps)
        return normed.to(input.dtype)


class GroupNorm32(nn.GroupNorm):
    """`torch.nn.GroupNorm` computed in float32 and rounded to the dtype of the input."""

    def forward(self, input: Tensor) -> Tensor:
        """Return normalized values in the shape and dtype of the input.

        Raises:
            TypeError: the input is not floating point.
        """
        wide = _widened(input, self)
        weight, bias = _like(self.weight, wide), _like(self.bias, wide)
        return F.group_norm(wide, self.num_groups, weight, bias, self.eps).to(input.dtype)


class ChannelLayerNorm32(LayerNorm32):
    """`LayerNorm32` over the channels of a grid (B, C, ...)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, C, ...) with each cell normalized over its channels.

        Raises:
            TypeError: the input is not floating point.
        """
        return super().forward(input.movedim(1, -1)).movedim(-1, 1).contiguous()


class MultiHeadRMSNorm(nn.Module):
    """Scales each head's vector to length `sqrt(d)`, times a learned factor per channel.

    `y = x / max(norm(x), 1e-12) * gamma * sqrt(d)`, computed in float32.

    Args:
        dim: channels d of a head.
        heads: number of heads H.

    Attributes:
        gamma: (H, d), ones at first.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive.
    """

    def __init__(self, dim: int, heads: int) -> None:
        """See the class."""
        super().__init__()
        check_positive(dim, "dim")
        check_positive(heads, "heads")
        self.scale = math.sqrt(dim)
        self.gamma = nn.Parameter(torch.ones(heads, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return normalized vectors (..., H, d) in the dtype of the input.

        Raises:
            TypeError: the input is not floating point.
        """
        wide = _widened(x, self)
        unit = F.normalize(wide, dim=-1)
        return (unit * self.gamma.to(wide.dtype) * self.scale).to(x.dtype)


def _widened(x: Tensor, module: nn.Module) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(
            f"{type(module).__name__} takes floating point values, got {x.dtype}; cast them first"
        )
    return x if x.dtype == torch.float64 else x.float()


def _like(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.to(x.dtype)
