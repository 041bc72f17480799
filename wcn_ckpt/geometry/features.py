"""Feature rows of a batch of clouds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from wcn_ckpt.geometry.arithmetic import BinaryOp, RowArithmetic, check_same_rows, scalar_operand
from wcn_ckpt.geometry.batched import BatchedTensor

if TYPE_CHECKING:
    from typing_extensions import Self


# A dataclass for the tools that `Geometry` names.
@dataclass(init=False, repr=False, eq=False)
class CatFeatures(RowArithmetic, BatchedTensor):
    """Features of shape (N, C), cloud after cloud, of any dtype."""

    tensor: Tensor
    offsets: Tensor

    @property
    def num_channels(self) -> int:
        """Number of channels C."""
        return self.tensor.shape[1]

    def _check_rows(self, rows: Tensor) -> None:
        if rows.ndim != 2:
            raise ValueError(
                f"features must have shape (N, C), got {tuple(rows.shape)}; unsqueeze a single "
                "channel, concatenate padded (B, M, C) clouds"
            )

    def _combine(self, other: object, op: BinaryOp) -> Self:
        if isinstance(other, CatFeatures):
            check_same_rows(self.offsets, self.tensor, other.offsets, other.tensor)
            return self.with_rows(op(self.tensor, other.tensor), self.offsets)
        return self.with_rows(op(self.tensor, scalar_operand(other)), self.offsets)
