"""Torch's own tools find the tensors in a geometry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel.distributed import _find_tensors
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from tests.geometry.clouds import make_points, make_voxels
from wcn_ckpt.geometry import Points, Voxels


class Scan(Points):
    """A user's own kind of geometry."""


def test_a_geometry_is_its_features_and_coordinates() -> None:
    voxels = make_voxels(tensor_stride=2, voxel_size=1.0)
    voxels.spatial_cache["table"] = torch.zeros(1)

    leaves, structure = pytree.tree_flatten({"x": [voxels]})
    again = pytree.tree_unflatten(leaves, structure)["x"][0]

    assert leaves[0] is voxels.feature_tensor
    assert leaves[1] is voxels.coordinate_tensor
    assert len(leaves) == 2
    assert type(again) is Voxels
    assert again.batched_coordinates is voxels.batched_coordinates
    assert again.spatial_cache is voxels.spatial_cache
    assert again.extra_attributes == voxels.extra_attributes


def test_other_coordinates_leave_the_tables_behind() -> None:
    voxels = make_voxels(tensor_stride=2, voxel_size=1.0)
    voxels.spatial_cache["table"] = 1

    cloned: Voxels = pytree.tree_map(torch.clone, voxels)

    assert torch.equal(cloned.coords, voxels.coords)
    assert cloned.tensor_stride == (2, 2, 2)
    assert cloned.extra_attributes == {"voxel_size": 1.0}


def test_leaves_may_be_anything() -> None:
    seen: list[Any] = []

    pytree.tree_map(seen.append, make_points())

    assert [tuple(leaf.shape) for leaf in seen] == [(55, 4), (55, 3)]


def test_structures_compare() -> None:
    def structure(**options: Any) -> pytree.TreeSpec:
        return pytree.tree_structure(make_voxels(**options))

    assert structure() == structure(seed=1)
    assert structure() != structure(tensor_stride=2)
    assert structure() != structure(sizes=(55,))
    assert structure() != structure(voxel_size=1.0)
    assert structure() != pytree.tree_structure(make_points())


def test_a_subclass_is_known_as_soon_as_it_exists() -> None:
    points = make_points((3,))
    scan = Scan(points.batched_coordinates, points.batched_features)

    assert type(pytree.tree_map(lambda leaf: leaf, scan)) is Scan


def test_a_checkpoint_carries_gradients_through_geometries() -> None:
    voxels = make_voxels()

    def run(recomputed: bool) -> Tensor:
        rows = voxels.feats.clone().requires_grad_()
        x = voxels.replace_features(rows)

        def body(v: Voxels) -> Voxels:
            return v.replace_features(v.feats.sin() * v.feats)

        y = checkpoint(body, x, use_reentrant=False) if recomputed else body(x)
        (gradient,) = torch.autograd.grad(y.feats.sum(), rows)
        return gradient

    assert torch.equal(run(True), run(False))


def test_data_parallel_finds_output_tensors() -> None:
    voxels = make_voxels()

    # torch gives this function no types.
    found = [id(tensor) for tensor in _find_tensors([voxels])]  # type: ignore[no-untyped-call]

    assert id(voxels.feature_tensor) in found
