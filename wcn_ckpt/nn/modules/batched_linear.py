"""Several linear maps of one input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BatchedLinear(nn.Module):
    """Applies `num_matrices` matrices to the same rows.

    Args:
        in_channels: channels of the input.
        out_channels: channels of each output.
        num_matrices: number of matrices M.
        bias: whether to add a bias.

    Attributes:
        weight: (M, in_channels, out_channels), applied as `x @ weight[m]`.
        bias: (M * out_channels,) or None.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_matrices: int = 3, bias: bool = True
    ) -> None:
        """See the class."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_matrices, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(num_matrices * out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight by Xavier's uniform rule for a 3-D tensor; the bias becomes zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, M, out_channels) for (N, in_channels)."""
        count, _, out_channels = self.weight.shape
        rows = F.linear(x, self.weight.transpose(1, 2).flatten(0, 1), self.bias)
        return rows.view(*x.shape[:-1], count, out_channels)

    def extra_repr(self) -> str:
        """Show the sizes."""
        count, in_channels, out_channels = self.weight.shape
        return f"{in_channels}, {out_channels}, num_matrices={count}, bias={self.bias is not None}"
