"""Joining geometries and taking them apart."""

from __future__ import annotations

import pytest
import torch

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import cat, sparse_cat, sparse_unbind


def test_channels_join_in_the_order_of_the_arguments() -> None:
    left, right = make_voxels(channels=2, tensor_stride=2), make_voxels(channels=3, seed=1)

    joined = cat(left, right, left)

    assert torch.equal(joined.feats, torch.cat([left.feats, right.feats, left.feats], 1))
    assert joined.batched_coordinates is left.batched_coordinates
    assert torch.equal(sparse_cat([left, right], dim=1).feats, cat(left, right).feats)


def test_clouds_join_and_come_apart() -> None:
    parts = [make_voxels((3, 0), tensor_stride=2), make_voxels((0, 2), tensor_stride=2, seed=1)]

    joined = sparse_cat(parts)

    assert joined.offsets.tolist() == [0, 3, 3, 3, 5]
    assert joined.tensor_stride == (2, 2, 2)
    clouds = sparse_unbind(joined)
    assert [len(cloud) for cloud in clouds] == [3, 0, 0, 2]
    for cloud, original in zip(clouds, [part[b] for part in parts for b in (0, 1)], strict=True):
        assert cloud.batch_size == 1
        assert torch.equal(cloud.coords, original.coords)
        assert torch.equal(cloud.feats, original.feats)


def test_an_unknown_stride_is_read_as_1() -> None:
    voxels = make_voxels((3,))

    joined = sparse_cat(part for part in (voxels, voxels.replace(tensor_stride=1)))

    assert joined.offsets.tolist() == [0, 3, 6]


def test_refuses_to_take_apart_what_is_no_geometry() -> None:
    with pytest.raises(TypeError, match="no geometry but str"):
        sparse_unbind("clouds")  # type: ignore[type-var]  # that is what is tested


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"geometry 1 has offsets \[0, 2\]"):
        cat(make_points((3,)), make_points((2,)))
    with pytest.raises(ValueError, match="sparse_cat"):
        cat(make_points((3,)), dim=0)
    with pytest.raises(ValueError, match="nothing to join"):
        sparse_cat([])
    with pytest.raises(TypeError, match="argument 1 is no geometry but Tensor"):
        cat(make_points((3,)), torch.zeros(3, 1))  # type: ignore[type-var]  # that is tested
    with pytest.raises(TypeError, match="Points and geometry 0 Voxels"):
        sparse_cat([make_voxels((3,)), make_points((3,))])
    with pytest.raises(ValueError, match="equal channels"):
        sparse_cat([make_voxels((3,)), make_voxels((3,), channels=1)])
    with pytest.raises(ValueError, match="tensor stride"):
        sparse_cat([make_voxels((3,)), make_voxels((3,), tensor_stride=2)])
