"""Between voxels and dense grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor


@dataclass(frozen=True)
class DenseBox:
    """The cells that a dense grid covers.

    Attributes:
        corner: cell at (0, 0, 0) of the grid.
        shape: cells along each axis.
        crops: whether voxels outside are left out; otherwise they are an error.
    """

    corner: tuple[int, ...]
    shape: tuple[int, ...]
    crops: bool


def choose_box(
    cells: Tensor,
    spatial_shape: Sequence[int] | None,
    min_coords: Sequence[int] | None,
    max_coords: Sequence[int] | None,
) -> DenseBox:
    """Work out the box from what is given and, for the rest, from the (N, 3) cells.

    Raises:
        TypeError: a part is not a sequence of integers.
        ValueError: a part does not have three entries, or the parts contradict each other.
    """
    spatial_shape = _three_integers(spatial_shape, "spatial_shape")
    min_coords = _three_integers(min_coords, "min_coords")
    max_coords = _three_integers(max_coords, "max_coords")
    crops = min_coords is not None or max_coords is not None
    if spatial_shape is not None and not crops:
        return _box((0, 0, 0), spatial_shape, crops)
    if spatial_shape is not None and min_coords is not None and max_coords is not None:
        spans = [high - low + 1 for low, high in zip(min_coords, max_coords, strict=True)]
        if spans != list(spatial_shape):
            raise ValueError(
                f"spatial_shape is {list(spatial_shape)}, but min_coords {list(min_coords)} to "
                f"max_coords {list(max_coords)} span {spans}"
            )
    if min_coords is None and max_coords is not None and spatial_shape is not None:
        min_coords = [high - n + 1 for high, n in zip(max_coords, spatial_shape, strict=True)]
    empty = len(cells) == 0
    low = min_coords or ([0, 0, 0] if empty else cells.amin(dim=0).tolist())
    if spatial_shape is None:
        high = max_coords or ([n - 1 for n in low] if empty else cells.amax(dim=0).tolist())
        spatial_shape = [last - first + 1 for first, last in zip(low, high, strict=True)]
    return _box(low, spatial_shape, crops)


def densify(
    features: Tensor,
    cells: Tensor,
    clouds: Tensor,
    batch_size: int,
    box: DenseBox,
    channel_dim: int = 1,
) -> Tensor:
    """Scatter (N, C) features to a (B, C, X, Y, Z) grid; see `Voxels.to_dense`."""
    _check_channel_dim(channel_dim)
    x, y, z = (cells.long() - cells.new_tensor(box.corner)).unbind(dim=1)
    inside = (x >= 0) & (y >= 0) & (z >= 0)
    for places, extent in zip((x, y, z), box.shape, strict=True):
        inside = inside & (places < extent)
    if not inside.all():
        if not box.crops:
            raise ValueError(
                f"voxel {cells[~inside][0].tolist()} is outside spatial_shape {list(box.shape)}; "
                "pass min_coords, or a larger shape"
            )
        clouds, x, y, z, features = (part[inside] for part in (clouds, x, y, z, features))
    grid = features.new_zeros(batch_size, *box.shape, features.shape[1])
    return grid.index_put((clouds, x, y, z), features).movedim(-1, channel_dim)


def sparsify(grid: Tensor, channel_dim: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Find the cells of a grid that are not zero in every channel.

    Returns:
        Their (N, C) features, (N, 3) int32 cells in row-major order, and the number of cells of
        each cloud (B,).

    Raises:
        TypeError: the grid is no tensor.
        ValueError: the grid does not have five dimensions, or `channel_dim` is none of them.
    """
    if not isinstance(grid, Tensor):
        raise TypeError(f"a dense grid must be a tensor, got {type(grid).__name__}")
    _check_channel_dim(channel_dim)
    if grid.ndim != 5:
        raise ValueError(f"a dense grid has shape (B, C, X, Y, Z), got {tuple(grid.shape)}")
    rows = grid.movedim(channel_dim, -1)
    occupied = (rows.detach() != 0).any(dim=-1)
    clouds, x, y, z = occupied.nonzero(as_tuple=True)
    cells = torch.stack((x, y, z), dim=1).int()
    return rows[clouds, x, y, z], cells, clouds.bincount(minlength=len(grid))


def _three_integers(part: Sequence[int] | Tensor | None, name: str) -> list[int] | None:
    """Return a part of the box as a list."""
    if part is None:
        return None
    entries = part.tolist() if isinstance(part, Tensor) else part
    if not isinstance(entries, Sequence) or not all(isinstance(n, Integral) for n in entries):
        raise TypeError(f"{name} must be three integers, got {part!r}")
    if len(entries) != 3:
        raise ValueError(f"{name} must have three entries, got {list(entries)}")
    return [int(n) for n in entries]


def _check_channel_dim(channel_dim: int) -> None:
    if channel_dim not in range(-5, 5):
        raise ValueError(
            f"channel_dim must be one of the five dimensions of a dense grid, got {channel_dim!r}"
        )


def _box(corner: Sequence[int], shape: Sequence[int], crops: bool) -> DenseBox:
    if min(shape) < 0:
        raise ValueError(f"the box from {list(corner)} has a negative shape {list(shape)}")
    return DenseBox(tuple(map(int, corner)), tuple(map(int, shape)), crops)
