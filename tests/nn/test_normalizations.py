"""Normalizations in float32: against their definitions, in every dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from wcn_ckpt.nn.modules import (
    ChannelLayerNorm32,
    GroupNorm32,
    LayerNorm32,
    MultiHeadRMSNorm,
)

NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: LayerNorm32(64),
    "layer, plain": lambda: LayerNorm32(64, elementwise_affine=False, eps=1e-6),
    "group": lambda: GroupNorm32(4, 64),
    "group, plain": lambda: GroupNorm32(4, 64, affine=False),
    "channel": lambda: ChannelLayerNorm32(64),
    "rms": lambda: MultiHeadRMSNorm(8, 8),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    norm = NORMS[name]()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def values(name: str, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(1)
    x = 3 * torch.randn(5, 64, dtype=torch.float64) + 10
    return (x.reshape(5, 8, 8) if name == "rms" else x).to(dtype)


def defined(name: str, norm: nn.Module, x: Tensor) -> Tensor:
    """The definition, in float64."""
    if name == "rms":
        unit = x / x.square().sum(-1, keepdim=True).sqrt()
        return unit * norm.gamma.double() * 8**0.5
    groups = x.reshape(5, 4, 16) if name.startswith("group") else x
    centred = groups - groups.mean(-1, keepdim=True)
    out = centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    out = out.reshape(x.shape)
    return out if norm.weight is None else out * norm.weight.double() + norm.bias.double()


@pytest.mark.parametrize("name", NORMS)
def test_double_precision_stays_double(name: str) -> None:
    norm, x = make(name).double(), values(name)

    out = norm(x)

    assert out.dtype == torch.float64
    torch.testing.assert_close(out, defined(name, norm, x), rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(norm, x[:2].requires_grad_())


@pytest.mark.parametrize("name", NORMS)
def test_double_precision_input_to_a_float_module(name: str) -> None:
    norm, x = make(name), values(name)

    torch.testing.assert_close(norm(x), defined(name, norm, x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cast", [False, True])
def test_half_precision_is_normalized_in_float32(name: str, dtype: torch.dtype, cast: bool) -> None:
    norm, x = make(name), values(name, dtype)
    norm = norm.to(dtype) if cast else norm

    out = norm(x)

    assert out.dtype == dtype
    assert torch.equal(out, norm(x.float()).to(dtype))


def test_single_precision_is_that_of_torch() -> None:
    x = values("layer", torch.float32)

    assert torch.equal(make("layer")(x), nn.LayerNorm.forward(make("layer"), x))
    assert torch.equal(make("group")(x), nn.GroupNorm.forward(make("group"), x))


@pytest.mark.parametrize("name", NORMS)
def test_autocast_does_not_narrow_it(name: str) -> None:
    norm, x = make(name), values(name, torch.float32)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = norm(x)

    assert torch.equal(out, norm(x))


def test_the_channels_of_a_grid_are_dimension_one() -> None:
    norm = make("channel")
    grid = torch.randn(2, 64, 3, 4, 5)

    out = norm(grid)

    rows = grid.permute(0, 2, 3, 4, 1).reshape(-1, 64)
    expected = nn.functional.layer_norm(rows, (64,), norm.weight, norm.bias)
    assert torch.equal(out.permute(0, 2, 3, 4, 1).reshape(-1, 64), expected)
    assert out.is_contiguous()


def test_the_zero_vector_is_left_alone() -> None:
    assert torch.equal(MultiHeadRMSNorm(8, 2)(torch.zeros(3, 2, 8)), torch.zeros(3, 2, 8))


@pytest.mark.parametrize("name", NORMS)
def test_integers_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="floating point.*int64"):
        make(name)(torch.ones(2, 64, dtype=torch.int64))


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        MultiHeadRMSNorm(0, 2)
    with pytest.raises(TypeError, match="heads must be an integer, got 2.5"):
        MultiHeadRMSNorm(4, 2.5)  # type: ignore[arg-type]


def test_state_keys_are_those_of_torch() -> None:
    assert list(make("layer").state_dict()) == ["weight", "bias"]
    assert list(make("layer, plain").state_dict()) == []
    assert list(make("rms").state_dict()) == ["gamma"]
