"""Pooling against brute force, and the way back."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any, get_args

import pytest
import torch

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.geometry.reductions import Reduction
from wcn_ckpt.nn.modules import SparseMaxPool, SparseMinPool, SparsePool, SparseUnpool

REDUCE: dict[str, Any] = {
    "max": lambda rows: rows.amax(0),
    "min": lambda rows: rows.amin(0),
    "mean": lambda rows: rows.mean(0),
    "sum": lambda rows: rows.sum(0),
    "mul": lambda rows: rows.prod(0),
    "var": lambda rows: rows.var(0, correction=0),
    "std": lambda rows: (rows.var(0, correction=0) + 1e-6).sqrt(),
}


def windows(voxels: Voxels, kernel: int, stride: int) -> dict[tuple[int, ...], list[int]]:
    """Return the rows in the window of each parent, sorted by parent."""
    rows = {tuple(cell): row for row, cell in enumerate(voxels.coords.tolist())}
    reach = range(-(kernel // 2), kernel // 2 + 1) if kernel % 2 else range(kernel)
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for cloud, *parent in sorted({(b, *(c // stride for c in cell)) for b, *cell in rows}):
        key = (cloud, *parent)
        for offset in itertools.product(reach, repeat=3):
            cell = (cloud, *(stride * c + o for c, o in zip(parent, offset, strict=True)))
            if cell in rows:
                found[key].append(rows[cell])
    return found


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1), (4, 3), (2, 1)])
def test_agrees_with_brute_force(reduce: Reduction, kernel: int, stride: int) -> None:
    voxels = make_voxels((80, 0, 40, 0))

    out = SparsePool(kernel, stride, reduce)(voxels)

    found = windows(voxels, kernel, stride)
    expected = {cell: REDUCE[reduce](voxels.feats[rows]) for cell, rows in found.items()}
    assert {tuple(cell) for cell in out.coords.tolist()} == expected.keys()
    for cell, row in zip(out.coords.tolist(), out.feats, strict=True):
        torch.testing.assert_close(row, expected[tuple(cell)])
    assert out.batch_size == 4
    assert out.tensor_stride == (None if stride == 1 else (stride,) * 3)


@pytest.mark.parametrize("reduce", get_args(Reduction))
def test_gradients_flow(reduce: Reduction) -> None:
    voxels = make_voxels((12, 0, 5), channels=2)

    def pool(features: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        out: Voxels = SparsePool(2, 2, reduce)(voxels.replace_features(features))
        return out.feats

    assert torch.autograd.gradcheck(pool, voxels.feats.requires_grad_())


def test_named_pools() -> None:
    voxels = make_voxels()

    assert torch.equal(SparseMaxPool(2, 2)(voxels).feats, SparsePool(2, 2)(voxels).feats)
    assert torch.equal(SparseMinPool(2, 2)(voxels).feats, SparsePool(2, 2, "min")(voxels).feats)


def test_random_copies_a_child() -> None:
    voxels = make_voxels()
    torch.manual_seed(0)

    pool = SparsePool(2, 2, "random")
    first, second = pool(voxels), pool(voxels)

    for row, rows in zip(first.feats, windows(voxels, 2, 2).values(), strict=True):
        assert any(torch.equal(row, voxels.feats[child]) for child in rows)
    assert not torch.equal(first.feats, second.feats)


def test_an_empty_window_gives_zeros_and_a_warning() -> None:
    cells = torch.tensor([[0, 0, 0], [5, 0, 0]], dtype=torch.int32)
    voxels = Voxels([cells], [torch.ones(2, 3)])

    with pytest.warns(UserWarning, match=r"1 of 2 pooling windows are empty"):
        out = SparseMaxPool(1, 2)(voxels)

    assert out.feats.tolist() == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("concat", [True, False])
def test_unpooling_gives_each_voxel_its_parent(concat: bool) -> None:
    voxels = make_voxels(tensor_stride=3)
    pooled = SparsePool(2, 2, "mean")(voxels)

    out = SparseUnpool(2, 2, concat_unpooled_st=concat)(pooled, voxels)

    cells = map(tuple, pooled.coords.tolist())
    parents = dict(zip(cells, pooled.feats, strict=True))
    expected = torch.stack(
        [parents[b, x // 2, y // 2, z // 2] for b, x, y, z in voxels.coords.tolist()]
    )
    assert torch.equal(out.feats, torch.cat([voxels.feats, expected], 1) if concat else expected)
    assert out.batched_coordinates is voxels.batched_coordinates


def test_refuses() -> None:
    voxels = make_voxels()
    with pytest.raises(ValueError, match="no parent"):
        SparseUnpool(2, 2)(SparseMaxPool(4, 4)(voxels), voxels)
    with pytest.raises(ValueError, match="1 clouds and the fine side 4"):
        SparseUnpool(2, 2)(make_voxels((3,)), voxels)
    with pytest.raises(TypeError, match="SparseMaxPool takes Voxels, got Points"):
        SparseMaxPool(2, 2)(make_points())
    with pytest.raises(TypeError, match="SparseUnpool takes Voxels, got Points"):
        SparseUnpool(2, 2)(voxels, make_points())
    with pytest.raises(ValueError, match="'median'"):
        SparsePool(2, 2, "median")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(ValueError, match="kernel_size.*0"):
        SparsePool(0, 2)
