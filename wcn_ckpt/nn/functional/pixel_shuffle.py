"""From channels to space on dense grids."""

from __future__ import annotations

from torch import Tensor


def pixel_shuffle_3d(grid: Tensor, factor: int) -> Tensor:
    """Spread channels over `factor` times as many cells along each axis.

    Channel `((c * factor + i) * factor + j) * factor + k` becomes channel c at the offset
    (i, j, k), as `torch.nn.functional.pixel_shuffle` does in two dimensions.

    Args:
        grid: (B, C * factor ** 3, X, Y, Z).
        factor: cells per cell along each axis.

    Returns:
        (B, C, factor * X, factor * Y, factor * Z).

    Raises:
        ValueError: `grid` does not have five dimensions, `factor` is below 1, or the channels are
            not divisible by its cube.
    """
    if grid.ndim != 5:
        raise ValueError(f"grid must have shape (B, C, X, Y, Z), got {tuple(grid.shape)}")
    if factor < 1 or grid.shape[1] % factor**3:
        raise ValueError(
            f"{grid.shape[1]} channels cannot be spread over {factor} cells along each of three "
            f"axes; they must be divisible by {factor}**3, with a factor of at least 1"
        )
    batch, channels, *extent = grid.shape
    parts = grid.reshape(batch, channels // factor**3, factor, factor, factor, *extent)
    nested = parts.permute(0, 1, 5, 2, 6, 3, 7, 4)
    return nested.reshape(batch, -1, *(factor * size for size in extent))
