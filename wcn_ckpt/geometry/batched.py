"""Tensors that hold the rows of several clouds, cloud after cloud."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wcn_ckpt.geometry.offsets import as_offsets, offsets_from_counts

if TYPE_CHECKING:
    from typing_extensions import Self


class BatchedTensor:
    """Rows of B clouds in one (N, C) tensor, with the offsets that separate them.

    Attributes:
        tensor: (N, C) rows, cloud-major.
        offsets: (B + 1,) int32 or int64 on the CPU.
    """

    tensor: Tensor
    offsets: Tensor

    def __init__(
        self,
        tensor: Tensor | Sequence[Tensor],
        offsets: Tensor | Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Take one tensor with offsets, or one tensor per cloud without.

        Args:
            tensor: (N, C) rows, or a list of B tensors (N_b, C).
            offsets: (B + 1,) integers; only with the one-tensor form, where they are required.
            device: where the rows are put; by default they stay where they are.

        Raises:
            TypeError: the rows or offsets are not of an accepted type.
            ValueError: the rows are not two-dimensional, or do not agree with the offsets.
        """
        if isinstance(tensor, Tensor):
            if offsets is None:
                raise ValueError(
                    f"{type(self).__name__} from one tensor needs offsets, e.g. [0, {len(tensor)}]"
                    " for a single cloud; a list with one tensor per cloud needs none"
                )
            rows, table = tensor, as_offsets(offsets)
        else:
            if offsets is not None:
                raise ValueError("offsets come from the lengths of the list; pass one or the other")
            rows, table = self._join(tensor)
        self._check_fit(rows, table)
        self._assign(rows if device is None else rows.to(device), table)

    @classmethod
    def fitted(cls, tensor: Tensor, offsets: Tensor) -> Self:
        """Wrap a tensor for offsets of another part, which are known to be valid.

        Raises:
            TypeError: the rows are not of an accepted type.
            ValueError: the rows are not two-dimensional, or not as many as the offsets say.
        """
        self = cls.trusted(tensor, offsets)
        self._check_fit(tensor, offsets)
        return self

    @classmethod
    def trusted(cls, tensor: Tensor, offsets: Tensor) -> Self:
        """Wrap a tensor and CPU offsets that are known to be valid, without checks."""
        self = cls.__new__(cls)
        self._assign(tensor, offsets)
        return self

    @property
    def batch_size(self) -> int:
        """Number of clouds B, empty ones included."""
        return len(self.offsets) - 1

    @property
    def device(self) -> torch.device:
        """Device of the rows."""
        return self.tensor.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows."""
        return self.tensor.dtype

    def __len__(self) -> int:
        """Number of rows N over all clouds."""
        return self.tensor.shape[0]

    def __repr__(self) -> str:
        """Shape and offsets, not the rows."""
        return (
            f"{type(self).__name__}(shape={tuple(self.tensor.shape)}, dtype={self.dtype}, "
            f"device={self.device}, offsets={self.offsets.tolist()})"
        )

    def cloud(self, index: int) -> Self:
        """Return the rows of one cloud as a batch of one.

        Raises:
            IndexError: there is no such cloud.
        """
        if not -self.batch_size <= index < self.batch_size:
            raise IndexError(f"cloud {index} of a batch of {self.batch_size}")
        start, stop = self.offsets[index % self.batch_size :][:2].tolist()
        counts = offsets_from_counts([stop - start], self.offsets.dtype)
        return self.with_rows(self.tensor[start:stop], counts)

    def with_rows(self, tensor: Tensor, offsets: Tensor) -> Self:
        """Return other rows and offsets of the same kind, without checks."""
        return type(self).trusted(tensor, offsets)

    def to(self, device: torch.device | str) -> Self:
        """Return the rows on `device`; itself when they are there already."""
        moved = self.tensor.to(device)
        return self if moved is self.tensor else self.with_rows(moved, self.offsets)

    def _assign(self, tensor: Tensor, offsets: Tensor) -> None:
        self.tensor, self.offsets = tensor, offsets

    def _check_fit(self, rows: Tensor, offsets: Tensor) -> None:
        self._check_rows(rows)
        if rows.shape[0] != offsets[-1]:
            raise ValueError(
                f"{type(self).__name__} has {rows.shape[0]} rows but its offsets end at "
                f"{int(offsets[-1])}: {offsets.tolist()}"
            )

    def _check_rows(self, rows: Tensor) -> None:
        if rows.ndim != 2:
            raise ValueError(
                f"{type(self).__name__} needs rows of shape (N, C), got {tuple(rows.shape)}"
            )

    def _empty_rows(self) -> Tensor:
        return torch.empty(0, 0)

    def _join(self, clouds: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        if not isinstance(clouds, (list, tuple)):
            raise TypeError(
                f"{type(self).__name__} needs a tensor, or a list with one tensor per cloud, got "
                f"{type(clouds).__name__}"
            )
        for b, cloud in enumerate(clouds):
            if not isinstance(cloud, Tensor):
                raise TypeError(
                    f"{type(self).__name__} needs a tensor per cloud, but cloud {b} is a "
                    f"{type(cloud).__name__}"
                )
            self._check_rows(cloud)
            if (cloud.shape[1], cloud.dtype, cloud.device) != (
                clouds[0].shape[1],
                clouds[0].dtype,
                clouds[0].device,
            ):
                raise ValueError(
                    f"clouds of one batch must agree in channels, dtype and device: cloud {b} has "
                    f"{cloud.shape[1]}, {cloud.dtype}, {cloud.device} and cloud 0 has "
                    f"{clouds[0].shape[1]}, {clouds[0].dtype}, {clouds[0].device}"
                )
        rows = torch.cat(list(clouds)) if clouds else self._empty_rows()
        return rows, offsets_from_counts([len(cloud) for cloud in clouds])
