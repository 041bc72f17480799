"""Scans of a user's own, in every format."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plyfile import PlyData, PlyElement  # type: ignore[import-untyped]  # ships no types
from pypcd4.pypcd4 import Encoding, PointCloud

from matrix.inputs import load_scan

SCANS = os.environ.get("WCN_CKPT_SCANS")
POSITIONS = np.array([[0.0, 1.0, 2.0], [-1.0, 0.5, 3.0], [4.0, 4.0, 4.0]], dtype=np.float32)
COLOURS = np.array([[255, 0, 0], [0, 128, 0], [1, 2, 3]], dtype=np.uint8)


def coloured(positions: Any = POSITIONS) -> Any:
    """Return a structured array with colours in bytes."""
    kinds = [(axis, "f4") for axis in "xyz"] + [(c, "u1") for c in ("red", "green", "blue")]
    rows = [(*p, *c) for p, c in zip(positions.tolist(), COLOURS.tolist(), strict=True)]
    return np.array(rows, dtype=kinds)


def write_ply(path: Path, text: bool) -> None:
    PlyData([PlyElement.describe(coloured(), "vertex")], text=text).write(str(path))


def write_ascii_pcd(path: Path) -> None:
    """Write packed colours in as many digits as PCL does; pypcd4's writer rounds them to 0."""
    packed = PointCloud.encode_rgb(COLOURS)
    header = (
        "VERSION .7\nFIELDS x y z rgb\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\nWIDTH 3\n"
        "HEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS 3\nDATA ascii\n"
    )
    rows = [f"{x} {y} {z} {c:.9g}" for (x, y, z), c in zip(POSITIONS, packed, strict=True)]
    path.write_text(header + "\n".join(rows) + "\n")


def write_pcd(path: Path, encoding: Encoding) -> None:
    packed = PointCloud.encode_rgb(COLOURS)
    cloud = PointCloud.from_xyzrgb_points(np.column_stack([POSITIONS, packed]))
    cloud.save(path, encoding)


WRITERS: dict[str, Any] = {
    "structured.npy": lambda path: np.save(path, coloured()),
    "ascii.ply": lambda path: write_ply(path, text=True),
    "binary.ply": lambda path: write_ply(path, text=False),
    "ascii.pcd": write_ascii_pcd,
    "binary.pcd": lambda path: write_pcd(path, Encoding.BINARY),
    "compressed.pcd": lambda path: write_pcd(path, Encoding.BINARY_COMPRESSED),
}


@pytest.mark.parametrize("name", WRITERS)
def test_colours_and_positions(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)

    points = load_scan(tmp_path / name)

    assert torch.equal(points.coordinate_tensor, torch.from_numpy(POSITIONS))
    torch.testing.assert_close(points.feats, torch.from_numpy(COLOURS) / 255)
    assert points.extra_attributes == {
        "feature_names": ("red", "green", "blue"),
        "dropped_points": 0,
    }
    assert points.batch_size == 1


def test_columns_beyond_the_third_are_features(tmp_path: Path) -> None:
    table = np.arange(15.0).reshape(3, 5)
    np.save(tmp_path / "a.npy", table)
    np.savez(tmp_path / "a.npz", scan=table)
    np.savez(tmp_path / "b.npz", coords=table[:, :3], feats=table[:, 3:])

    for name in ("a.npy", "a.npz", "b.npz"):
        points = load_scan(str(tmp_path / name))
        assert torch.equal(points.coordinate_tensor, torch.from_numpy(table[:, :3]))
        assert torch.equal(points.feats, torch.from_numpy(table[:, 3:]).float())
        assert points.coordinate_tensor.dtype == torch.float64


def test_bare_positions_have_one_feature(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", xyz=POSITIONS, other=np.zeros(1))

    points = load_scan(tmp_path / "a.npz")

    assert points.feats.tolist() == [[1], [1], [1]]
    assert points.extra_attributes["feature_names"] == ("one",)


def test_points_without_a_value_are_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = np.ones((5, 4), dtype=np.float32)
    table[1, 0], table[2, 2], table[3, 3] = np.nan, np.inf, -np.inf
    np.save(tmp_path / "a.npy", table)

    with caplog.at_level(logging.WARNING):
        points = load_scan(tmp_path / "a.npy")

    assert len(points) == 2
    assert points.extra_attributes["dropped_points"] == 3
    assert "left out 3 of 5 points" in caplog.text


def test_repeated_points_merge_into_voxels(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.concatenate([POSITIONS, POSITIONS + 0.01]))

    voxels = load_scan(tmp_path / "a.npy").to_voxels(0.5)

    assert len(voxels) == 3
    assert voxels.batched_coordinates.index


def test_padding_in_a_pcd_is_no_feature(tmp_path: Path) -> None:
    header = (
        "VERSION .7\nFIELDS x y z _ label\nSIZE 4 4 4 1 4\nTYPE F F F U U\nCOUNT 1 1 1 4 1\n"
        "WIDTH 2\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS 2\nDATA binary\n"
    )
    kinds = [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("_", "u1", 4), ("label", "<u4")]
    rows = np.zeros(2, dtype=kinds)
    rows["label"] = [7, 9]
    (tmp_path / "a.pcd").write_bytes(header.encode() + rows.tobytes())

    points = load_scan(tmp_path / "a.pcd")

    assert points.extra_attributes["feature_names"] == ("label",)
    assert points.feats.tolist() == [[7], [9]]


PCD_OF_ONE = (
    "VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH {points}\nHEIGHT 1\n"
    "VIEWPOINT 0 0 0 1 0 0 0\nPOINTS {points}\nDATA ascii\n1 2 3\n"
)


def test_a_pcd_of_one_point(tmp_path: Path) -> None:
    (tmp_path / "a.pcd").write_text(PCD_OF_ONE.format(points=1))

    assert load_scan(tmp_path / "a.pcd").coordinate_tensor.tolist() == [[1, 2, 3]]


BAD: dict[str, tuple[Any, str]] = {
    "a.las": (b"", r"\.npy, \.npz, \.ply, \.pcd"),
    "empty.pcd": (b"", "cannot read .*empty.pcd"),
    "short.pcd": (PCD_OF_ONE.format(points=3).encode(), "announces 3 points, it has 1"),
    "no.ply": (b"hello", "cannot read"),
    "pickled.npy": (np.array([{}], dtype=object), "allow_pickle"),
    "flat.npy": (np.zeros((3, 2)), r"shape \(3, 2\)"),
    "unnamed.npy": (np.zeros(2, dtype=[("x", "f4"), ("y", "f4")]), "has no z"),
    "nan.npy": (np.full((3, 3), np.nan), "3 points, and none"),
    "names.npz": ({"a": np.zeros((3, 3)), "b": np.zeros(3)}, "none of .*coords"),
    "rows.npz": ({"coords": np.zeros((3, 3)), "feats": np.zeros((2, 1))}, r"\(2, 1\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content, allow_pickle=True)

    with pytest.raises(ValueError, match=message):
        load_scan(path)


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no scan at .*a.npy"):
        load_scan(tmp_path / "a.npy")


def test_a_truncated_pcd_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.pcd"
    write_pcd(path, Encoding.BINARY)
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(ValueError, match="cannot read"):
        load_scan(path)


@pytest.mark.skipif(SCANS is None, reason="WCN_CKPT_SCANS names no folder with scans")
def test_real_scans_become_voxels() -> None:
    paths = sorted(path for path in Path(SCANS or "").iterdir() if path.suffix == ".pcd")
    assert paths, f"{SCANS} holds no .pcd file"

    for path in paths:
        points = load_scan(path)
        size = points.coordinate_tensor.aminmax(dim=0).max.sub(points.coordinate_tensor.amin(0))
        voxels = points.to_voxels(float(size.max()) / 50)
        assert 50 < len(voxels) < len(points)
        assert voxels.feats.isfinite().all()
        assert voxels.batched_coordinates.index
