"""Torch's own tools find the tensors in a geometry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.utils import _apply_to_tensors
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


def test_data_parallel_finds_coordinates_that_carry_a_gradient() -> None:
    places = torch.rand(4, 3, requires_grad=True)
    points = Points(places, torch.rand(4, 2), [0, 4])

    found = _find_tensors(points)  # type: ignore[no-untyped-call]  # torch gives it no types

    assert any(tensor is places for tensor in found)


def test_sharded_training_casts_features_and_nothing_else() -> None:
    """FSDP2 casts the inputs of a unit with this function of torch's."""
    size = torch.tensor(0.05)
    voxels = Voxels(
        torch.tensor([[0, 0, 0], [2, 0, 0]]), torch.rand(2, 4), [0, 2], stride=2, voxel_size=size
    )
    voxels.spatial_cache["table"] = torch.rand(1)
    points = Points(torch.rand(4, 3), torch.rand(4, 2), [0, 4])

    cast = _apply_to_tensors(_to_bfloat16, {"voxels": voxels, "points": [points]})

    seen, seen_points = cast["voxels"], cast["points"][0]
    assert torch.equal(seen.feats, voxels.feats.bfloat16())
    assert seen.tensor_stride == (2, 2, 2)
    assert seen.batched_coordinates is voxels.batched_coordinates
    assert seen.voxel_size is size
    assert seen.spatial_cache is voxels.spatial_cache
    assert set(seen.extra_attributes) == set(voxels.extra_attributes)
    assert seen_points.feats.dtype is torch.bfloat16
    assert torch.equal(seen_points.coordinate_tensor, points.coordinate_tensor)


def _to_bfloat16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16() if tensor.is_floating_point() else tensor
