"""Chains of modules on geometries and on features."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import Geometry, Voxels
from wcn_ckpt.nn.modules import (
    ConvBlock,
    Linear,
    ReLU,
    Sequential,
    SparseConv3d,
    SparseMaxPool,
    SparseUnpool,
    SpatialModule,
    TupleSequential,
)


class Seen(nn.Module):
    """Records what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.given.append(x)
        return x


class SeenSpatial(Seen, SpatialModule):
    """The same, as a spatial module."""


def test_plain_modules_get_features_and_spatial_ones_geometries() -> None:
    voxels = make_voxels()
    plain, spatial, last = Seen(), SeenSpatial(), Seen()

    out = Sequential(SparseConv3d(4, 6, 3, 2).double(), plain, nn.ReLU(), spatial, last)(voxels)

    assert isinstance(plain.given[0], Tensor)
    assert isinstance(spatial.given[0], Voxels)
    assert isinstance(last.given[0], Tensor)
    assert isinstance(out, Voxels)
    assert out.tensor_stride == (2, 2, 2)
    assert torch.equal(out.feats, plain.given[0].relu())


def test_features_are_rewrapped_with_the_last_geometry() -> None:
    voxels = make_voxels(channels=2)

    out = Sequential(nn.Identity(), SparseMaxPool(2, 2), nn.Tanh(), nn.Softplus())(voxels)

    pooled = SparseMaxPool(2, 2)(voxels)
    assert out.batched_coordinates is pooled.batched_coordinates
    assert torch.equal(out.feats, nn.Softplus()(pooled.feats.tanh()))


@pytest.mark.parametrize("make", [make_points, make_voxels])
def test_any_geometry_will_do(make: Any) -> None:
    geometry: Geometry = make()
    block = Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()).double()

    out = block(geometry)

    assert type(out) is type(geometry)
    assert out.batch_size == geometry.batch_size
    expected = nn.Sequential(*copy.deepcopy(block).eval().train())(geometry.feats)
    assert torch.equal(out.feats, expected)


def test_an_empty_chain_returns_its_input() -> None:
    voxels = make_voxels()

    assert Sequential()(voxels) is voxels


def test_chains_nest() -> None:
    voxels = make_voxels()
    inner = Sequential(nn.ReLU(), ReLU())

    out = Sequential(nn.Identity(), inner, nn.Identity())(voxels)

    assert torch.equal(out.feats, voxels.feats.relu())


def test_keys_are_numbers_and_slices_are_plain_chains() -> None:
    block = ConvBlock(4, 6)

    assert list(block.state_dict()) == [
        "0.weight",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]
    assert type(block[:2]) is Sequential
    assert len(block[:2]) == 2
    assert block[-1] is block[2]
    assert list(block[1:].state_dict()) == list(nn.Sequential(*block)[1:].state_dict())


def test_autocast_reaches_plain_modules() -> None:
    seen = Seen()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        Sequential(seen)(make_voxels(dtype=torch.float32))

    assert seen.given[0].dtype == torch.bfloat16


def test_one_module_may_take_more() -> None:
    voxels = make_voxels()
    pooled = SparseMaxPool(2, 2)(voxels)
    chain = TupleSequential(Linear(4, 3), SparseUnpool(2, 2), nn.ReLU(), tuple_layer=1).double()

    out = chain(pooled, voxels)

    assert out.batched_coordinates is voxels.batched_coordinates
    assert out.num_channels == 7
    for layer in (-1, 3):
        with pytest.raises(ValueError, match=f"one of the 3 modules, got {layer}"):
            TupleSequential(*chain, tuple_layer=layer)


@pytest.mark.parametrize("chain", [Sequential(), TupleSequential(nn.ReLU(), tuple_layer=0)])
def test_refuses_tensors(chain: nn.Module) -> None:
    with pytest.raises(TypeError, match="takes a geometry .* got Tensor"):
        chain(torch.zeros(3, 4))
