"""Pooling layers on voxels."""

from __future__ import annotations

from collections.abc import Sequence

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.geometry.coordinates import positive_triple
from wcn_ckpt.geometry.reductions import Reduction, check_reduction
from wcn_ckpt.nn.functional.pooling import sparse_pool, sparse_unpool
from wcn_ckpt.nn.modules.base import SpatialModule


class SparsePool(SpatialModule):
    """Reduces the voxels in a window around each cell of a coarser grid.

    Args:
        kernel_size: window size, one integer or one per axis; centred when odd, looking forward
            when even, like a convolution kernel.
        stride: input cells per output cell.
        reduce: `max`, `min`, `mean`, `sum`, `mul`, `var`, `std` or `random`; see
            `wcn_ckpt.nn.functional.sparse_pool`.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or there is no such reduction.
    """

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int],
        reduce: Reduction = "max",
    ) -> None:
        """See the class."""
        super().__init__()
        check_reduction(reduce)
        self.kernel_size = positive_triple(kernel_size, "kernel_size")
        self.stride = positive_triple(stride, "stride")
        self.reduce: Reduction = reduce

    def forward(self, x: Voxels) -> Voxels:
        """Return pooled voxels, with the tensor stride times `stride`.

        Raises:
            TypeError: `x` is not `Voxels`.
            ValueError: voxels repeat.
        """
        _check_voxels(self, x)
        return sparse_pool(x, self.kernel_size, self.stride, self.reduce)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, reduce={self.reduce!r}"


class SparseMaxPool(SparsePool):
    """Maximum over a window; ties send the gradient to one voxel."""

    def __init__(self, kernel_size: int | Sequence[int], stride: int | Sequence[int]) -> None:
        """See `SparsePool`."""
        super().__init__(kernel_size, stride, "max")


class SparseMinPool(SparsePool):
    """Minimum over a window; ties send the gradient to one voxel."""

    def __init__(self, kernel_size: int | Sequence[int], stride: int | Sequence[int]) -> None:
        """See `SparsePool`."""
        super().__init__(kernel_size, stride, "min")


class SparseUnpool(SpatialModule):
    """Gives each fine voxel the features of its parent in a pooled geometry.

    Args:
        kernel_size: window size of the pool; kept for symmetry with it.
        stride: stride of the pool.
        concat_unpooled_st: whether the fine voxels' own features stay, in front.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive.
    """

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int],
        concat_unpooled_st: bool = True,
    ) -> None:
        """See the class."""
        super().__init__()
        self.kernel_size = positive_triple(kernel_size, "kernel_size")
        self.stride = positive_triple(stride, "stride")
        self.concat_unpooled_st = concat_unpooled_st

    def forward(self, pooled: Voxels, fine: Voxels) -> Voxels:
        """Return the fine voxels with their parents' features.

        Raises:
            TypeError: an argument is not `Voxels`.
            ValueError: a fine voxel has no parent in `pooled`.
        """
        _check_voxels(self, pooled)
        _check_voxels(self, fine)
        return sparse_unpool(pooled, fine, self.stride, self.concat_unpooled_st)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"stride={self.stride}, concat_unpooled_st={self.concat_unpooled_st}"


def _check_voxels(module: SpatialModule, x: object) -> None:
    if not isinstance(x, Voxels):
        raise TypeError(
            f"{type(module).__name__} takes Voxels, got {type(x).__name__}; "
            "points become voxels with Points.to_voxels(voxel_size)"
        )
