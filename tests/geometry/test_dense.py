"""Voxels as dense grids and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.geometry.clouds import make_voxels
from wcn_ckpt.geometry import Voxels


def test_the_bounding_box_of_the_batch_is_filled() -> None:
    voxels = make_voxels()
    low = voxels.coordinate_tensor.amin(0)
    high = voxels.coordinate_tensor.amax(0)

    grid = voxels.to_dense()

    assert grid.shape == (4, 4, *(high - low + 1).tolist())
    for (cloud, *cell), row in zip(voxels.coords.tolist(), voxels.feats, strict=True):
        x, y, z = (torch.tensor(cell) - low).tolist()
        assert torch.equal(grid[cloud, :, x, y, z], row)
    assert grid.ne(0).any(dim=1).sum() == len(voxels)


def test_with_a_shape_nothing_is_moved() -> None:
    voxels = make_voxels((20,), low=0, high=4)

    grid = voxels.to_dense(spatial_shape=(4, 5, 6))

    x, y, z = voxels.coordinate_tensor.long().unbind(1)
    assert grid.shape == (1, 4, 4, 5, 6)
    assert torch.equal(grid[0, :, x, y, z].t(), voxels.feats)


def test_a_box_crops() -> None:
    voxels = make_voxels((100,), low=-3, high=3)

    whole = voxels.to_dense(min_coords=(-3, -3, -3), max_coords=(2, 2, 2))

    boxes: list[dict[str, Any]] = [
        {"min_coords": (-1, 0, 0), "max_coords": (1, 1, 2)},
        {"min_coords": (-1, 0, 0), "spatial_shape": (3, 2, 3)},
        {"max_coords": (1, 1, 2), "spatial_shape": (3, 2, 3)},
        {"min_coords": (-1, 0, 0), "max_coords": (1, 1, 2), "spatial_shape": (3, 2, 3)},
    ]
    for options in boxes:
        grid = voxels.to_dense(**options)
        assert torch.equal(grid, whole[:, :, 2:5, 3:5, 3:6])


def test_channels_go_where_they_are_wanted() -> None:
    voxels = make_voxels()

    assert torch.equal(voxels.to_dense(channel_dim=-1), voxels.to_dense().movedim(1, -1))


def test_there_and_back_again() -> None:
    voxels = make_voxels((15, 0, 12), low=0, high=4)

    again = Voxels.from_dense(voxels.to_dense(spatial_shape=(4, 4, 4)), tensor_stride=2)

    order = [sorted(range(len(v)), key=v.coords.tolist().__getitem__) for v in (voxels, again)]
    assert torch.equal(again.coords[order[1]], voxels.coords[order[0]])
    assert torch.equal(again.feats[order[1]], voxels.feats[order[0]])
    assert again.offsets.tolist() == [0, 15, 15, 27]
    assert again.coords.tolist() == sorted(again.coords.tolist())
    assert again.tensor_stride == (2, 2, 2)


def test_gradients_flow_both_ways() -> None:
    voxels = make_voxels((6, 0, 3))
    rows = voxels.feats.requires_grad_()

    assert torch.autograd.gradcheck(lambda f: voxels.replace_features(f).to_dense(), rows)
    grid = voxels.replace_features(rows.detach()).to_dense().requires_grad_()
    (gradient,) = torch.autograd.grad(Voxels.from_dense(grid).feats.sum(), grid)
    assert torch.equal(gradient, grid.ne(0).to(gradient.dtype))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spatial_shape": (2, 2, 2)}, "outside spatial_shape"),
        ({"spatial_shape": (2, 2)}, "three entries"),
        ({"min_coords": (0, 0, 0), "max_coords": (-2, 0, 0)}, "negative shape"),
        (
            {"min_coords": (0, 0, 0), "max_coords": (1, 1, 1), "spatial_shape": (3, 3, 3)},
            r"span \[2, 2, 2\]",
        ),
    ],
)
def test_refuses_boxes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_voxels().to_dense(**options)


def test_refuses_boxes_of_another_kind() -> None:
    odd: list[Any] = [3, "abc", (1.5, 2, 2)]
    for shape in odd:
        with pytest.raises(TypeError, match="spatial_shape must be three integers"):
            make_voxels().to_dense(spatial_shape=shape)
    for channel_dim in (5, -6):
        with pytest.raises(ValueError, match=f"channel_dim .* got {channel_dim}"):
            make_voxels().to_dense(channel_dim=channel_dim)
        with pytest.raises(ValueError, match=f"channel_dim .* got {channel_dim}"):
            Voxels.from_dense(torch.ones(1, 1, 2, 2, 2), channel_dim=channel_dim)
    with pytest.raises(TypeError, match="got list"):
        Voxels.from_dense([[1.0]])  # type: ignore[arg-type]  # that is what is tested


def test_a_box_may_come_as_tensors() -> None:
    voxels = make_voxels()
    corner = voxels.coordinates.amin(0)

    assert torch.equal(
        voxels.to_dense(min_coords=corner, max_coords=voxels.coordinates.amax(0)),  # type: ignore[arg-type]  # duck typing
        voxels.to_dense(),
    )


def test_booleans_become_voxels_too() -> None:
    grid = torch.zeros(1, 1, 2, 2, 2, dtype=torch.bool)
    grid[0, 0, 1, 0, 1] = True

    voxels = Voxels.from_dense(grid)

    assert voxels.coordinates.tolist() == [[1, 0, 1]]
    assert voxels.dtype == torch.bool


def test_refuses_repeated_voxels_and_other_shapes() -> None:
    cells = torch.zeros(2, 3, dtype=torch.int32)

    with pytest.raises(ValueError, match="1 of 2 voxels repeat"):
        Voxels([cells], [torch.zeros(2, 1)]).to_dense()
    with pytest.raises(ValueError, match=r"\(2, 1\)"):
        Voxels.from_dense(torch.zeros(2, 1))


def test_no_voxels_fill_a_box_of_no_cells() -> None:
    empty = Voxels([torch.zeros(0, 3, dtype=torch.int32)], [torch.zeros(0, 2)])

    assert empty.to_dense().shape == (1, 2, 0, 0, 0)
    assert empty.to_dense(spatial_shape=(2, 2, 2)).shape == (1, 2, 2, 2, 2)


def test_corners_become_points() -> None:
    voxels = make_voxels(tensor_stride=(1, 2, 4))

    points = voxels.to_point(0.5)

    expected = voxels.coordinate_tensor * torch.tensor([0.5, 1.0, 2.0])
    assert torch.equal(points.coordinate_tensor, expected)
    assert torch.equal(points.feats, voxels.feats)
    assert points.offsets.tolist() == voxels.offsets.tolist()
    with pytest.raises(ValueError, match="voxel_size"):
        voxels.to_point()
    with pytest.raises(ValueError, match="-1"):
        voxels.to_point(-1)
