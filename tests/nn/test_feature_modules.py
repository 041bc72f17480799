"""Activations and layers on the features of a geometry."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.nn.modules import GELU, BatchNorm, DropPath, LayerNorm, Linear, ReLU, SiLU
from wcn_ckpt.nn.modules.base import FeatureModule

PAIRS = [(ReLU(), F.relu), (GELU(), F.gelu), (SiLU(), F.silu)]


@pytest.mark.parametrize(("module", "function"), PAIRS)
def test_activations(module: nn.Module, function: object) -> None:
    points = make_points()
    assert callable(function)

    out = module(points)

    assert torch.equal(out.feats, function(points.feats))
    assert out.batched_coordinates is points.batched_coordinates


def test_only_an_inplace_relu_writes() -> None:
    points = make_points()
    before = points.feats.clone()

    ReLU()(points)
    assert torch.equal(points.feats, before)

    ReLU(inplace=True)(points)
    assert torch.equal(points.feats, before.relu())


@pytest.mark.parametrize(
    ("module", "keys"),
    [
        (Linear(4, 3), ["block.weight", "block.bias"]),
        (LayerNorm(4), ["norm.weight", "norm.bias"]),
        (
            BatchNorm(4),
            [
                "norm.weight",
                "norm.bias",
                "norm.running_mean",
                "norm.running_var",
                "norm.num_batches_tracked",
            ],
        ),
    ],
)
def test_layers_wrap_those_of_torch(module: FeatureModule, keys: list[str]) -> None:
    voxels = make_voxels(dtype=torch.float32)
    (wrapped,) = module.children()

    assert list(module.state_dict()) == keys
    assert torch.equal(module(voxels).feats, wrapped(voxels.feats))


class TestDropPath:
    """Rows are dropped one by one."""

    def test_rows_vanish_or_grow(self) -> None:
        torch.manual_seed(0)
        ones = make_voxels((700,)).replace_features(torch.ones(700, 4, dtype=torch.float64))

        dropped = DropPath(0.25)(ones).feats

        assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
        assert set(dropped.flatten().tolist()) == {0.0, 1 / 0.75}
        assert 0.2 < (dropped == 0).double().mean() < 0.3

    def test_nothing_happens_in_evaluation_or_with_probability_0(self) -> None:
        voxels = make_voxels()

        assert DropPath(0.5).eval()(voxels).feats is voxels.feats
        assert DropPath(0)(voxels).feats is voxels.feats

    def test_probability_1_drops_everything(self) -> None:
        assert DropPath(1)(make_voxels()).feats.count_nonzero() == 0

    @pytest.mark.parametrize("p", [-0.1, 1.1])
    def test_refuses_other_probabilities(self, p: float) -> None:
        with pytest.raises(ValueError, match=str(p)):
            DropPath(p)

    def test_refuses_what_is_no_number(self) -> None:
        with pytest.raises(TypeError, match="'half'"):
            DropPath("half")  # type: ignore[arg-type]  # that is what is tested


@pytest.mark.parametrize("layer", [LayerNorm, BatchNorm, lambda channels: Linear(channels, 4)])
def test_refuses_sizes(layer: Any) -> None:
    with pytest.raises(ValueError, match="channels must be at least 1, got 0"):
        layer(0)
    with pytest.raises(TypeError, match="channels must be an integer, got 1.5"):
        layer(1.5)


def test_refuses_tensors() -> None:
    tensor: Tensor = torch.zeros(3, 4)
    with pytest.raises(TypeError, match="ReLU takes a geometry .* got Tensor"):
        ReLU()(tensor)
