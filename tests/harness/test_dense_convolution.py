"""Each mode of the sparse convolution is within the bound of the dense one, a wrong one is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from harness.dense_convolution import ConvolutionWatch, convolutions_equal_dense
from harness.trace import Trace
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.modules import SparseConv3d


def voxels(channels: int = 4, dtype: torch.dtype = torch.float32, step: int = 1) -> Voxels:
    generator = torch.Generator().manual_seed(0)
    clouds = [
        torch.unique(torch.randint(-4, 4, (60, 3), generator=generator), dim=0) * step
        for _ in range(2)
    ]
    features = [torch.randn(len(c), channels, generator=generator).to(dtype) for c in clouds]
    return Voxels([c.int() for c in clouds], features)


def watched(conv: nn.Module, *args: Any) -> ConvolutionWatch:
    watch = ConvolutionWatch()
    with watch.watch(Trace(conv)), torch.no_grad():
        conv(*args)
    return watch


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kernel_size": 2},
        {"kernel_size": (3, 1, 2)},
        {"stride": 2},
        {"kernel_size": 2, "stride": 2},
        {"dilation": 2},
        {"bias": False},
        {"groups": 2},
        {"generative": True},
        {"stride": 2, "generative": True},
    ],
)
def test_modes_of_the_convolution(settings: dict[str, Any]) -> None:
    conv = SparseConv3d(4, 6, **{"kernel_size": 3, **settings})

    watch = watched(conv, voxels())

    assert len(watch.calls) == 1
    assert convolutions_equal_dense(watch, rank=0) == []


def test_a_transposed_convolution() -> None:
    fine = voxels()
    down, up = SparseConv3d(4, 6, 2, stride=2), SparseConv3d(6, 4, 2, stride=2, transposed=True)

    watch = watched(up, down(fine), fine)

    assert convolutions_equal_dense(watch, rank=0) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    conv = SparseConv3d(4, 6, 3).to(dtype)

    assert convolutions_equal_dense(watched(conv, voxels(dtype=dtype)), rank=0) == []


def test_autocast() -> None:
    conv = SparseConv3d(4, 6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        watch = watched(conv, voxels())

    assert convolutions_equal_dense(watch, rank=0) == []


def test_a_product_with_a_weight_that_moved_by_one_part_in_a_thousand_is_found() -> None:
    conv = SparseConv3d(4, 6, 3)
    watch = watched(conv, voxels())
    watch.calls[""].weight[13, 0, 0, 0] *= 1.001

    (finding,) = convolutions_equal_dense(watch, rank=1)

    assert (finding.rank, finding.point, finding.path) == (1, "forward[0]", "convolution/[0, 0]")
    assert finding.max_abs is not None and finding.max_abs > finding.tolerance > 0
    assert finding.expected != finding.got
    assert "site (cloud, x, y, z) = (0," in finding.cause


def test_a_product_of_rows_and_a_pooling_first_are_not_watched() -> None:
    for settings in ({"kernel_size": 1}, {"stride": 2, "stride_mode": "reduce_and_stride"}):
        conv = SparseConv3d(4, 6, **{"kernel_size": 3, **settings})  # type: ignore[arg-type]
        assert watched(conv, voxels()).calls == {}


def test_only_the_first_call_is_kept_and_hooks_are_gone_afterwards() -> None:
    conv = SparseConv3d(4, 4, 3)
    watch = watched(nn.Sequential(conv, conv), voxels())
    conv(voxels())

    assert list(watch.calls) == ["0"]
    assert not conv._forward_hooks
