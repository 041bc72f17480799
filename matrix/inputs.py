"""Point clouds to run blocks on: real terrain, a synthetic room, a scan of the user's own.

The terrain is the elevation grid `jacksboro_fault_dem.npz` of matplotlib's sample data: 344 x 403
heights in metres around the Jacksboro fault in Tennessee, three arc seconds apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from matrix.extras import import_extra
from matrix.scans import load_scan
from wcn_ckpt.geometry import Points, Voxels

__all__ = [
    "ROOM_FEATURES",
    "TERRAIN_FEATURES",
    "load_scan",
    "room_points",
    "terrain_points",
    "terrain_voxels",
    "widen_features",
]

EARTH_RADIUS = 6_371_000.0

TERRAIN_FEATURES = (
    "height",
    "slope",
    "normal_east",
    "normal_north",
    "normal_up",
    "curvature",
    "roughness",
    "relief",
)
ROOM_FEATURES = (
    "normal_x",
    "normal_y",
    "normal_z",
    "red",
    "green",
    "blue",
    "height",
    "wall_distance",
)


def terrain_points(
    size: tuple[int, int] = (20, 20),
    clouds: int = 1,
    channels: int = len(TERRAIN_FEATURES),
    seed: int = 0,
) -> Points:
    """Return random crops of the terrain as points, one per height sample.

    Coordinates are metres east, north and up from the centre of the crop at its mean height;
    samples are about 74 m apart in east and 93 m in north direction.

    Args:
        size: samples of a crop from north to south and from west to east, at most (344, 403).
        clouds: number of crops in the batch.
        channels: number of features: those of `TERRAIN_FEATURES`, standardized over the whole
            grid, then sines and cosines of them at doubling frequencies.
        seed: decides where the crops are.

    Returns:
        `clouds * size[0] * size[1]` points, float32.

    Raises:
        ValueError: a crop does not fit in the grid, or a number is not positive.
        ModuleNotFoundError: the extra `lab` is not installed.
    """
    grid = _terrain()
    rows, columns = grid.heights.shape
    if not (1 <= size[0] <= rows and 1 <= size[1] <= columns):
        raise ValueError(f"a crop has between 1 x 1 and {rows} x {columns} samples, got {size}")
    _check_counts(clouds=clouds, channels=channels)
    generator = torch.Generator().manual_seed(seed)
    positions, features = [], []
    for _ in range(clouds):
        top = int(torch.randint(rows - size[0] + 1, (), generator=generator))
        left = int(torch.randint(columns - size[1] + 1, (), generator=generator))
        crop = (slice(top, top + size[0]), slice(left, left + size[1]))
        heights = grid.heights[crop]
        north = grid.spacing_north * ((size[0] - 1) / 2 - torch.arange(size[0]))
        east = grid.spacing_east * (torch.arange(size[1]) - (size[1] - 1) / 2)
        plane = torch.meshgrid(north, east, indexing="ij")
        position = torch.stack([plane[1], plane[0], heights - heights.mean()], dim=-1)
        positions.append(position.reshape(-1, 3).float())
        features.append(grid.features[crop].reshape(-1, len(TERRAIN_FEATURES)))
    return Points(positions, [widen_features(rows, channels) for rows in features])


def terrain_voxels(
    size: tuple[int, int] = (20, 20),
    clouds: int = 1,
    channels: int = len(TERRAIN_FEATURES),
    seed: int = 0,
    voxel_size: float = 90.0,
) -> Voxels:
    """Return random crops of the terrain as voxels with averaged features.

    With the default voxel size a crop has about 0.8 voxels per sample: 300 voxels for (20, 20),
    25 000 for (170, 190). Larger batches take several crops; (250, 270) with four clouds gives
    more than 200 000.

    Args:
        size: as `terrain_points`.
        clouds: as `terrain_points`.
        channels: as `terrain_points`.
        seed: as `terrain_points`.
        voxel_size: edge of a voxel in metres.

    Raises:
        ValueError: as `terrain_points`, or the voxel size is not positive.
    """
    return terrain_points(size, clouds, channels, seed).to_voxels(voxel_size)


def room_points(
    num_points: int = 2000,
    clouds: int = 1,
    channels: int = len(ROOM_FEATURES),
    seed: int = 0,
    furniture: int = 6,
) -> Points:
    """Return rooms made up of a floor, a ceiling, four walls and boxes for furniture.

    Points lie on the surfaces, uniformly by area. Coordinates are metres; the floor is at z = 0
    and the room is centred on the z axis.

    Args:
        num_points: points of each room.
        clouds: number of rooms, all different.
        channels: number of features: those of `ROOM_FEATURES`, then sines and cosines of them.
        seed: decides sizes, furniture, colours and points.
        furniture: number of boxes in each room.

    Returns:
        `clouds * num_points` points, float32.

    Raises:
        ValueError: a number is not positive.
    """
    _check_counts(num_points=num_points, clouds=clouds, channels=channels, furniture=furniture)
    generator = torch.Generator().manual_seed(seed)
    rooms = [_room(num_points, furniture, generator) for _ in range(clouds)]
    return Points(
        [positions for positions, _ in rooms],
        [widen_features(features, channels) for _, features in rooms],
    )


def widen_features(features: Tensor, channels: int) -> Tensor:
    """Return `channels` columns: the given ones, then sines and cosines of them.

    Args:
        features: (N, C) values of about unit size.
        channels: number of columns wanted; fewer than C keeps the first.
    """
    columns = [features]
    frequency = 1.0
    while sum(part.shape[1] for part in columns) < channels:
        columns += [(frequency * features).sin(), (frequency * features).cos()]
        frequency *= 2
    return torch.cat(columns, dim=1)[:, :channels].contiguous()


@dataclass(frozen=True)
class _Terrain:
    """The whole grid, row 0 in the north: heights (rows, columns) in metres, and features."""

    heights: Tensor
    features: Tensor
    spacing_north: float
    spacing_east: float


@lru_cache(maxsize=1)
def _terrain() -> _Terrain:
    import_extra("numpy", "the terrain")
    cbook = import_extra("matplotlib.cbook", "the terrain")
    with cbook.get_sample_data("jacksboro_fault_dem.npz") as data:
        heights = torch.from_numpy(data["elevation"]).double()
        metres_per_degree = math.radians(EARTH_RADIUS)
        latitude = math.radians((float(data["ymin"]) + float(data["ymax"])) / 2)
        north = float(data["dy"]) * metres_per_degree
        east = float(data["dx"]) * metres_per_degree * math.cos(latitude)
    features = _terrain_features(heights, north, east)
    standardized = (features - features.mean(dim=(0, 1))) / features.std(dim=(0, 1))
    return _Terrain(heights, standardized.float(), north, east)


def _terrain_features(heights: Tensor, spacing_north: float, spacing_east: float) -> Tensor:
    """Return (rows, columns, 8) features, in the order of `TERRAIN_FEATURES`."""
    southward, eastward = torch.gradient(heights, spacing=(spacing_north, spacing_east))
    steepness = torch.hypot(southward, eastward)
    length = torch.sqrt(1 + steepness**2)
    (curving_south,) = torch.gradient(southward, spacing=spacing_north, dim=0)
    (curving_east,) = torch.gradient(eastward, spacing=spacing_east, dim=1)
    padded = functional.pad(heights[None], (1, 1, 1, 1), mode="replicate")[0]
    windows = padded.unfold(0, 3, 1).unfold(1, 3, 1).flatten(2)
    return torch.stack(
        [
            heights,
            steepness.atan(),
            -eastward / length,
            southward / length,
            1 / length,
            curving_south + curving_east,
            windows.std(dim=2),
            windows.amax(dim=2) - windows.amin(dim=2),
        ],
        dim=-1,
    )


def _room(num_points: int, furniture: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return positions (N, 3) and features (N, 8) of one room."""
    room = torch.tensor([4.0, 3.0, 2.4]) + torch.rand(3, generator=generator)
    low, high = _boxes(room, furniture, generator)
    # Every face is one axis and one side of a box; box 0 is the room itself, seen from inside.
    extent = high - low
    areas = torch.stack(
        [extent[:, 1] * extent[:, 2], extent[:, 0] * extent[:, 2], extent[:, 0] * extent[:, 1]],
        dim=1,
    )
    faces = areas.repeat_interleave(2, dim=1).flatten()
    face = faces.multinomial(num_points, replacement=True, generator=generator)
    box, axis, side = face // 6, face % 6 // 2, face % 2
    rows = torch.arange(num_points)
    unit = torch.rand(num_points, 3, generator=generator)
    unit[rows, axis] = side.float()
    positions = low[box] + unit * extent[box]
    outward = torch.where(box == 0, -1.0, 1.0) * (2.0 * side - 1)
    normals = torch.zeros(num_points, 3)
    normals[rows, axis] = outward
    colours = torch.rand(len(low), 6, 3, generator=generator)[box, face % 6]
    walls = (room[:2] / 2 - positions[:, :2].abs()).amin(dim=1, keepdim=True)
    features = torch.cat([normals, colours, positions[:, 2:], walls], dim=1)
    return positions, features


def _boxes(room: Tensor, furniture: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return low and high corners (1 + furniture, 3) of the room and of boxes on its floor."""
    half = torch.tensor([room[0] / 2, room[1] / 2])
    sizes = torch.tensor([0.4, 0.4, 0.3]) + torch.rand(furniture, 3, generator=generator)
    middles = (2 * torch.rand(furniture, 2, generator=generator) - 1) * (half - sizes[:, :2] / 2)
    floor = torch.zeros(furniture, 1)
    low = torch.cat([middles - sizes[:, :2] / 2, floor], dim=1)
    room_low = torch.cat([-half, torch.zeros(1)])
    return torch.cat([room_low[None], low]), torch.cat([(room_low + room)[None], low + sizes])


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}")
