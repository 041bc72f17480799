from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.structures import leaves, tensors, with_tensors
from matrix.batches import terrain_batch


class Slotted:
    __slots__ = ("mask", "scale")

    def __init__(self, mask: Tensor, scale: float) -> None:
        self.mask, self.scale = mask, scale


@dataclasses.dataclass(frozen=True)
class Batch:
    rows: Tensor
    name: str = "batch"


class Pair(NamedTuple):
    first: Any
    second: Any


def test_every_kind_of_container_is_walked_and_named() -> None:
    value = {"a": [Batch(torch.ones(1))], "b": Pair(Slotted(torch.ones(2), 0.5), None)}

    found = {leaf.path: leaf.value for leaf in leaves(value)}

    assert list(found) == [
        "['a'][0].rows",
        "['a'][0].name",
        "['b'][0].mask",
        "['b'][0].scale",
        "['b'][1]",
    ]


def test_a_generator_is_used_up() -> None:
    assert [len(tensor) for tensor in tensors(torch.ones(n) for n in (1, 2))] == [1, 2]


def test_an_object_without_tensors_is_one_leaf() -> None:
    device = torch.device("cpu")

    assert [leaf.value for leaf in leaves([device, Slotted])] == [device, Slotted]


def test_a_structure_that_holds_itself_ends() -> None:
    value: list[Any] = [torch.ones(1)]
    value.append(value)

    assert len(tensors(value)) == 1


def test_a_copy_has_new_tensors_and_keeps_what_is_one_tensor_one() -> None:
    rows = torch.ones(2)
    value = {"batch": Batch(rows), "again": rows, "slots": Slotted(rows, 0.5)}

    copied = with_tensors(value, lambda tensor: tensor * 2)

    assert copied["batch"].rows is copied["again"] is copied["slots"].mask
    assert copied["again"].tolist() == [2.0, 2.0]
    assert value["slots"].mask is rows


def test_a_geometry_is_copied_with_its_clouds() -> None:
    voxels = terrain_batch(seed=0, rank=0, microbatch=0, channels=4)
    voxels = voxels[0] if isinstance(voxels, tuple) else voxels

    copied = with_tensors(voxels, torch.clone)

    assert torch.equal(copied.features, voxels.features)
    assert torch.equal(copied.offsets, voxels.offsets)
    assert copied.features is not voxels.features
