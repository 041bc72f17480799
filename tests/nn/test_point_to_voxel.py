"""Modules on voxels, run on points."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import points_to_voxels
from wcn_ckpt.nn.modules import BasicBlock, PointToVoxel, SparseMaxPool


@pytest.mark.parametrize("concat", [True, False])
def test_each_point_gets_the_features_of_its_voxel(concat: bool) -> None:
    points = make_points()

    out = PointToVoxel(nn.Identity(), 0.5, concat_unpooled_pc=concat)(points)

    voxels = points_to_voxels(points, 0.5, "mean")
    cells = torch.cat([points.coords[:, :1], (points.coordinate_tensor / 0.5).floor()], dim=1)
    rows = dict(zip(map(tuple, voxels.coords.tolist()), voxels.feats, strict=True))
    expected = torch.stack([rows[tuple(cell)] for cell in cells.int().tolist()])
    torch.testing.assert_close(out.feats[:, :4], expected)
    assert torch.equal(out.feats[:, 4:], points.feats if concat else points.feats[:, :0])
    assert out.batched_coordinates is points.batched_coordinates


def test_gradients_flow_through_the_inner_module() -> None:
    points = make_points()
    rows = points.feats.requires_grad_()
    module = PointToVoxel(BasicBlock(4, 8).double(), 0.5)

    out = module(points.replace_features(rows))
    gradients = torch.autograd.grad(out.feats.square().sum(), [rows, *module.parameters()])

    assert out.num_channels == 12
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_refuses_settings() -> None:
    with pytest.raises(ValueError, match="voxel_size must be positive"):
        PointToVoxel(nn.Identity(), 0.0)
    with pytest.raises(ValueError, match="'random' leaves points out"):
        PointToVoxel(nn.Identity(), 1.0, "random")


def test_refuses_voxels_and_modules_that_move() -> None:
    with pytest.raises(TypeError, match="takes Points, got Voxels"):
        PointToVoxel(nn.Identity(), 0.5)(make_voxels())
    with pytest.raises(ValueError, match="must keep the sites"):
        PointToVoxel(SparseMaxPool(2, 2), 0.5)(make_points())
