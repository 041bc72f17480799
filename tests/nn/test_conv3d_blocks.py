"""Blocks on dense grids, against their definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.nn.twins import fill_zeros
from wcn_ckpt.nn.functional import pixel_shuffle_3d
from wcn_ckpt.nn.modules import DownsampleBlock3d, ResBlock3d, UpsampleBlock3d, norm_layer_3d


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_pixel_shuffle(factor: int) -> None:
    grid = torch.randn(2, 2 * factor**3, 2, 3, 4)

    out = pixel_shuffle_3d(grid, factor)

    assert out.shape == (2, 2, 2 * factor, 3 * factor, 4 * factor)
    for c in range(2):
        for i, j, k in torch.cartesian_prod(*[torch.arange(factor)] * 3).reshape(-1, 3).tolist():
            channel = ((c * factor + i) * factor + j) * factor + k
            assert torch.equal(out[:, c, i::factor, j::factor, k::factor], grid[:, channel])


@pytest.mark.parametrize("out_channels", [None, 6])
def test_residual_block(out_channels: int | None) -> None:
    torch.manual_seed(0)
    block = ResBlock3d(4, out_channels)
    x = torch.randn(2, 4, 3, 3, 3)

    assert torch.equal(block(x), block.skip_connection(x))
    assert isinstance(block.skip_connection, torch.nn.Identity) is (out_channels is None)

    fill_zeros(block)
    h = F.conv3d(F.silu(block.norm1(x)), block.conv1.weight, block.conv1.bias, padding=1)
    h = F.conv3d(F.silu(block.norm2(h)), block.conv2.weight, block.conv2.bias, padding=1)
    assert torch.equal(block(x), h + block.skip_connection(x))
    assert block.norm1.eps == 1e-5


def test_resampling_blocks() -> None:
    x = torch.randn(2, 4, 6, 6, 6)
    down, up = DownsampleBlock3d(4, 5), UpsampleBlock3d(4, 5)

    assert torch.equal(down(x), F.conv3d(x, down.conv.weight, down.conv.bias, stride=2))
    expected = pixel_shuffle_3d(F.conv3d(x, up.conv.weight, up.conv.bias, padding=1), 2)
    assert torch.equal(up(x), expected)
    assert list(down.state_dict()) == list(up.state_dict()) == ["conv.weight", "conv.bias"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pixel_shuffle_3d(torch.ones(1, 12, 2, 2, 2), 2), "12 channels.*2"),
        (lambda: pixel_shuffle_3d(torch.ones(8, 2, 2, 2), 2), r"\(8, 2, 2, 2\)"),
        (lambda: pixel_shuffle_3d(torch.ones(1, 8, 2, 2, 2), 0), "factor of at least 1"),
        (lambda: norm_layer_3d("batch", 32), "'layer' or 'group', got 'batch'"),
        (lambda: norm_layer_3d("group", 48), "divisible by 32, got 48"),
        (lambda: ResBlock3d(0), "channels.*got 0"),
    ],
)
def test_refuses(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
