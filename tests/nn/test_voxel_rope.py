"""Rotations by cells against complex numbers."""

from __future__ import annotations

import pytest
import torch

from wcn_ckpt.nn.functional.voxel_rope import rope_frequencies, voxel_rope

CELLS = torch.tensor([[0, 0, 0], [3, 1, 4], [1, 5, 9], [2, 6, 5]])


def rows(channels: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(CELLS), 2, channels, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("channels", [6, 8, 12, 17])
def test_pairs_turn_with_their_axis(channels: int) -> None:
    x, per_axis = rows(channels), channels // 6

    out = voxel_rope(x, CELLS, base=250)

    for pair in range(3 * per_axis):
        axis, frequency = divmod(pair, per_axis)
        angle = (CELLS[:, axis] + 1) * 250 ** (-2 * frequency / (2 * per_axis))
        turned = torch.complex(x[..., 2 * pair], x[..., 2 * pair + 1])
        turned = turned * torch.polar(torch.ones(4), angle.float()).unsqueeze(1)
        torch.testing.assert_close(out[..., 2 * pair], turned.real, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(out[..., 2 * pair + 1], turned.imag, rtol=1e-6, atol=1e-6)
    assert torch.equal(out[..., 6 * per_axis :], x[..., 6 * per_axis :])


def test_products_depend_on_differences_of_cells() -> None:
    query, key = rows(12, 1), rows(12, 2)

    def products(shift: int) -> torch.Tensor:
        a, b = (voxel_rope(x, CELLS + shift, base=250) for x in (query, key))
        return torch.einsum("nhd,mhd->hnm", a, b)

    torch.testing.assert_close(products(0), products(37))


def test_narrow_heads_are_not_turned() -> None:
    x = rows(5)

    assert voxel_rope(x, CELLS, base=250) is x


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_computes_in_float32_and_keeps_the_dtype(dtype: torch.dtype) -> None:
    x = rows(6).to(dtype)

    out = voxel_rope(x, CELLS, base=10000)

    assert out.dtype == dtype
    assert torch.equal(out, voxel_rope(x.float(), CELLS, base=10000).to(dtype))


def test_frequencies() -> None:
    cpu = torch.device("cpu")

    assert rope_frequencies(24, 16, cpu).tolist() == [1.0, 0.5, 0.25, 0.125]
    assert rope_frequencies(5, 16, cpu).shape == (0,)
