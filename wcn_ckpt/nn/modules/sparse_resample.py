"""Layers between voxels and their children on a finer grid.

See `wcn_ckpt.nn.functional.resampling` for how children are numbered and remembered.
"""

from __future__ import annotations

from typing import Literal

import torch

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.reductions import segment_reduce
from wcn_ckpt.nn.functional.resampling import (
    Children,
    active_children,
    channel_to_space,
    children_for,
    coarsened,
    parents_of,
    refined,
    space_to_channel,
)
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.sparse_conv import check_positive


class Resampling(SpatialModule):
    """A layer that changes the grid by a factor.

    Args:
        factor: fine cells per coarse cell along each axis.

    Raises:
        TypeError: the factor is no integer.
        ValueError: the factor is not positive.
    """

    def __init__(self, factor: int = 2) -> None:
        """See the class."""
        super().__init__()
        check_positive(factor, "factor")
        self.factor = factor

    def extra_repr(self) -> str:
        """Show the factor."""
        return f"factor={self.factor}"


class SparseSpatial2Channel(Resampling):
    """Packs the children of each coarse cell into its channels, zeros where there is none.

    Its output remembers the children, for `SparseChannel2Spatial` to go back to.
    """

    def forward(self, x: Voxels) -> Voxels:
        """Return parents (M, factor ** 3 * C), sorted by `(cloud, x, y, z)`.

        Raises:
            TypeError: `x` is not `Voxels`.
            ValueError: voxels repeat.
        """
        _check_voxels(self, x)
        return space_to_channel(x, self.factor)


class SparseChannel2Spatial(Resampling):
    """Unpacks the channels of each cell onto its children."""

    def forward(self, x: Voxels, subdivision: Voxels | Children | None = None) -> Voxels:
        """Return children with `C / factor ** 3` channels.

        Args:
            x: M voxels with C channels, divisible by `factor ** 3`.
            subdivision: which children there are: voxels with the same rows and bool or 0/1
                features (M, factor ** 3). Without, the children that `SparseSpatial2Channel`
                packed, in their original order.

        Raises:
            TypeError: an argument is not `Voxels`.
            ValueError: the channels are not divisible, the subdivision does not fit, or there is
                none and nothing is remembered.
        """
        _check_voxels(self, x)
        return channel_to_space(x, children_for(x, subdivision, self.factor), self.factor)


class SparseDownsample(Resampling):
    """Reduces the children of each coarse cell to one voxel, which remembers them.

    Args:
        factor: fine cells per coarse cell along each axis.
        mode: `"mean"` or `"max"` over the children that exist.

    Raises:
        TypeError: the factor is no integer.
        ValueError: the factor is not positive, or the mode is unknown.
    """

    def __init__(self, factor: int = 2, mode: Literal["mean", "max"] = "mean") -> None:
        """See the class."""
        super().__init__(factor)
        if mode not in ("mean", "max"):
            raise ValueError(f"mode must be 'mean' or 'max', got {mode!r}")
        self.mode: Literal["mean", "max"] = mode

    def forward(self, x: Voxels) -> Voxels:
        """Return parents (M, C), sorted by `(cloud, x, y, z)`.

        Raises:
            TypeError: `x` is not `Voxels`.
            ValueError: voxels repeat.
        """
        _check_voxels(self, x)
        parents, children = parents_of(x, self.factor)
        rows = segment_reduce(x.feature_tensor, children.rows, len(parents), self.mode)
        return coarsened(x, parents, rows, self.factor, children)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"factor={self.factor}, mode={self.mode!r}"


class SparseUpsample(Resampling):
    """Copies the features of each voxel to its children."""

    def forward(self, x: Voxels, subdivision: Voxels | Children | None = None) -> Voxels:
        """Return children (N, C).

        Args:
            x: M voxels with C channels.
            subdivision: as in `SparseChannel2Spatial`; without, the children that
                `SparseDownsample` or `SparseSpatial2Channel` remembered.

        Raises:
            TypeError: an argument is not `Voxels`.
            ValueError: the subdivision does not fit, or there is none and nothing is remembered.
        """
        _check_voxels(self, x)
        children = children_for(x, subdivision, self.factor)
        return refined(x, children, x.feature_tensor.index_select(0, children.rows))


class SparseSubdivide(Resampling):
    """Divides each voxel into all of its children, and copies its features to them.

    The children of a voxel follow one another with z fastest.
    """

    def forward(self, x: Voxels) -> Voxels:
        """Return children (M * factor ** 3, C).

        Raises:
            TypeError: `x` is not `Voxels`.
            ValueError: a child is outside the int32 range.
        """
        _check_voxels(self, x)
        count = self.factor**3
        everyone = torch.ones(len(x), count, dtype=torch.bool, device=x.device)
        fine = active_children(x, everyone, self.factor).coordinates
        cells = fine.tensor.reshape(len(x), *(self.factor,) * 3, 3).transpose(1, 3)
        fine = fine.with_rows(cells.reshape(-1, 3), fine.offsets)
        rows = x.feature_tensor.repeat_interleave(count, dim=0)
        return x.replace(fine, CatFeatures.trusted(rows, fine.offsets))


def _check_voxels(module: SpatialModule, x: object) -> None:
    if not isinstance(x, Voxels):
        raise TypeError(f"{type(module).__name__} takes Voxels, got {type(x).__name__}")
