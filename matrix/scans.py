"""A user's own scan as points, from .npy, .npz, .ply or .pcd."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from matrix.extras import import_extra
from wcn_ckpt.geometry import Points

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Columns = dict[str, npt.NDArray[np.generic]]

logger = logging.getLogger(__name__)

AXES = ("x", "y", "z")
PACKED_COLOURS = ("rgb", "rgba")
COORDINATE_ARRAYS = ("coords", "coordinates", "points", "xyz", "positions")
FEATURE_ARRAYS = ("feats", "features", "colors", "rgb")


def load_scan(path: str | Path) -> Points:
    """Read one scan.

    Coordinates are `x`, `y`, `z`, in the unit of the file. All other numeric columns become
    features: a packed `rgb` or `rgba` column becomes red, green and blue in [0, 1], and 8-bit
    columns are divided by 255. A scan without other columns has one feature, 1. A scan with
    repeated points becomes voxels, merged, with `Points.to_voxels(voxel_size)`.

    - `.npy`: (N, 3 + C) numbers, or a structured array with fields x, y and z;
    - `.npz`: `coords` (N, 3) and, if wanted, `feats` (N, C); or a single array as in `.npy`;
    - `.ply`: element `vertex`, ASCII or binary;
    - `.pcd`: ASCII, binary or binary_compressed.

    Points with a NaN or infinite value are left out; how many is logged as a warning and kept as
    the attribute `dropped_points`.

    Args:
        path: the file.

    Returns:
        One cloud; float64 coordinates where the file has them, float32 otherwise. The attribute
        `feature_names` names the channels.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the format is unknown, the file is damaged, has no x, y and z, or has no point
            without NaN.
        ModuleNotFoundError: the extra `lab` is not installed.
    """
    path = Path(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} is none of {', '.join(_READERS)}; convert it first")
    if not path.is_file():
        raise FileNotFoundError(f"there is no scan at {path}")
    try:
        columns = reader(path)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        # Readers raise whatever their parsing meets: struct, decoding, validation errors.
        reason = str(error).partition("\n")[0]
        raise ValueError(f"cannot read {path}: {reason}") from error
    return _points(path, columns)


def _points(path: Path, columns: Columns) -> Points:
    np = import_extra("numpy", "a scan")
    missing = [axis for axis in AXES if axis not in columns]
    if missing:
        raise ValueError(
            f"{path} has no {', '.join(missing)} among its columns {sorted(columns)}; a scan needs "
            "x, y and z"
        )
    exact = any(columns[axis].dtype.itemsize == 8 for axis in AXES)
    positions = np.stack([columns.pop(axis) for axis in AXES], axis=1)
    positions = positions.astype(np.float64 if exact else np.float32)
    named = _features(columns)
    features = (
        np.stack(list(named.values()), axis=1) if named else np.ones((len(positions), 1))
    ).astype(np.float32)
    finite = np.isfinite(positions).all(axis=1) & np.isfinite(features).all(axis=1)
    dropped = int((~finite).sum())
    if dropped == len(finite):
        raise ValueError(f"{path} has {len(finite)} points, and none without NaN or infinity")
    if dropped:
        logger.warning(
            "%s: left out %d of %d points that have a NaN or infinite value",
            path,
            dropped,
            len(finite),
        )
    return Points(
        [torch.from_numpy(positions[finite])],
        [torch.from_numpy(features[finite])],
        feature_names=tuple(named) or ("one",),
        dropped_points=dropped,
    )


def _features(columns: Columns) -> Columns:
    """Return numeric columns in the order of the file, with colours unpacked."""
    np = import_extra("numpy", "a scan")
    named: Columns = {}
    for name, values in columns.items():
        if name in PACKED_COLOURS and values.dtype.itemsize == 4:
            bits = np.ascontiguousarray(values).view(np.uint32)
            for colour, shift in (("red", 16), ("green", 8), ("blue", 0)):
                named[colour] = (bits >> shift & 255) / np.float32(255)
        elif values.dtype == np.uint8:
            named[name] = values / np.float32(255)
        elif values.dtype.kind in "fiub":
            named[name] = values
    return named


def _read_npy(path: Path) -> Columns:
    np = import_extra("numpy", "reading .npy")
    return _columns_of(np.load(path, allow_pickle=False))


def _read_npz(path: Path) -> Columns:
    np = import_extra("numpy", "reading .npz")
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive)
        positions = next((name for name in COORDINATE_ARRAYS if name in names), None)
        if positions is None and len(names) == 1:
            return _columns_of(archive[names[0]])
        if positions is None:
            raise ValueError(f"it has arrays {names}, but none of {COORDINATE_ARRAYS}")
        features = next((name for name in FEATURE_ARRAYS if name in names), None)
        if features is None:
            return _columns_of(archive[positions])
        coords, feats = archive[positions], archive[features]
    if coords.shape != (len(feats), 3) or feats.ndim != 2:
        raise ValueError(
            f"{positions} must be (N, 3) and {features} (N, C), got {coords.shape} and "
            f"{feats.shape}"
        )
    named = dict(zip(AXES, coords.T, strict=True))
    return {**named, **{f"feature_{i}": column for i, column in enumerate(feats.T)}}


def _read_ply(path: Path) -> Columns:
    plyfile = import_extra("plyfile", "reading .ply")
    ply = plyfile.PlyData.read(str(path))
    if "vertex" not in ply:
        raise ValueError(f"it has no vertex element, only {[e.name for e in ply.elements]}")
    return _columns_of(ply["vertex"].data)


def _read_pcd(path: Path) -> Columns:
    pypcd4 = import_extra("pypcd4", "reading .pcd")
    cloud = pypcd4.PointCloud.from_path(path)
    # The reader returns one ASCII point as a scalar.
    points = cloud.pc_data.reshape(-1)
    if len(points) != cloud.metadata.points:
        raise ValueError(
            f"its header announces {cloud.metadata.points} points, it has {len(points)}"
        )
    # Padding, a field called "_" in the file, comes under a name that is no word.
    return {name: column for name, column in _columns_of(points).items() if name[0].isalpha()}


def _columns_of(array: Any) -> Columns:
    """Return the columns of a structured array or of an (N, 3 + C) one."""
    if array.dtype.names:
        return {name.lower(): array[name] for name in array.dtype.names}
    if array.ndim != 2 or array.shape[1] < len(AXES):
        raise ValueError(f"its array must be (N, 3) or wider, got shape {array.shape}")
    names = [*AXES, *(f"feature_{i}" for i in range(array.shape[1] - len(AXES)))]
    return dict(zip(names, array.T, strict=True))


_READERS: dict[str, Callable[[Path], Columns]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".ply": _read_ply,
    ".pcd": _read_pcd,
}
