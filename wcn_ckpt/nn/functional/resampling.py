"""Between voxels and their children on a grid that is `factor` times finer.

The parent of a cell is `floor(cell / factor)`, and its slot among the `factor ** 3` children is
`sum over axes i of (cell_i mod factor) * factor ** i`, so x runs fastest. Parents are sorted by
`(cloud, x, y, z)`; with factor 1 every cell is its own parent and rows stay where they are. Packed
features hold slot after slot: channel c of a slot is `slot * C + c`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.geometry.cache import SPATIAL_CACHE
from wcn_ckpt.geometry.cells import CellBox
from wcn_ckpt.geometry.coordinates import IntCoords, Triple
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.offsets import offsets_from_counts, same_offsets
from wcn_ckpt.nn.functional.sites import parent_rows, strided_sites


@dataclass(frozen=True, eq=False)
class Children:
    """Voxels of a fine grid as children of voxels of a coarse one.

    Attributes:
        coordinates: the N fine voxels.
        rows: (N,) int64 row of the parent of each.
        slots: (N,) int64 place among the children of the parent.
        tables: the tables that the fine voxels carried, so that their own children are still known
            when features come back to them.
    """

    coordinates: IntCoords
    rows: Tensor
    slots: Tensor
    tables: dict[Any, Any]

    def places(self, factor: int) -> Tensor:
        """Return (N,) places among all slots of all parents."""
        return self.rows * factor**3 + self.slots


def space_to_channel(voxels: Voxels, factor: int) -> Voxels:
    """Pack the features of the children of each parent side by side.

    Args:
        voxels: N voxels with C channels, each cell at most once.
        factor: fine cells per coarse cell along each axis.

    Returns:
        M parents with `factor ** 3 * C` channels, zeros for children that do not exist. They
        remember their children, see `remembered_children`; the tensor stride grows by `factor`.

    Raises:
        ValueError: voxels repeat.
    """
    parents, children = parents_of(voxels, factor)
    rows = voxels.feature_tensor
    packed = rows.new_zeros(len(parents) * factor**3, rows.shape[1])
    packed = packed.index_copy(0, children.places(factor), rows)
    packed = packed.reshape(len(parents), factor**3 * rows.shape[1])
    return coarsened(voxels, parents, packed, factor, children)


def coarsened(
    voxels: Voxels, parents: IntCoords, features: Tensor, factor: int, children: Children
) -> Voxels:
    """Return parents with features, which remember their children."""
    coarse = voxels.replace(parents, CatFeatures.trusted(features, parents.offsets))
    coarse.extra_attributes[SPATIAL_CACHE] = {_key(factor): children}
    return coarse


def parents_of(voxels: Voxels, factor: int) -> tuple[IntCoords, Children]:
    """Return the parents of voxels, and the voxels as their children.

    Raises:
        ValueError: voxels repeat.
    """
    coords = voxels.batched_coordinates
    _ = coords.index
    stride = (factor,) * 3
    parents = strided_sites(coords, stride)
    rows = parent_rows(coords, parents, stride)

    def build() -> Tensor:
        inside = coords.tensor.long().remainder(factor)
        return (inside * _steps(factor, coords.device)).sum(dim=1)

    slots = coords.cache.get(("slots", factor), build)
    tables = voxels.extra_attributes.get(SPATIAL_CACHE, {})
    return parents, Children(coords, rows, slots, tables)


def channel_to_space(voxels: Voxels, children: Children, factor: int) -> Voxels:
    """Unpack features onto children; the inverse of `space_to_channel`.

    Args:
        voxels: M parents with `factor ** 3 * C` channels.
        children: the fine voxels to go to.
        factor: fine cells per coarse cell along each axis.

    Returns:
        The children with C channels.

    Raises:
        ValueError: the channels are not divisible by `factor ** 3`.
    """
    slots = factor**3
    if voxels.num_channels % slots:
        raise ValueError(
            f"{voxels.num_channels} channels cannot be spread over {slots} children; the channels "
            f"must be divisible by {slots}"
        )
    channels = voxels.num_channels // slots
    packed = voxels.feature_tensor.reshape(len(voxels) * slots, channels)
    return refined(voxels, children, packed.index_select(0, children.places(factor)))


def refined(voxels: Voxels, children: Children, features: Tensor) -> Voxels:
    """Return children with features (N, C), and with the tables that they carried."""
    coordinates = children.coordinates
    fine = voxels.replace(coordinates, CatFeatures.trusted(features, coordinates.offsets))
    fine.extra_attributes[SPATIAL_CACHE] = children.tables
    return fine


def remembered_children(voxels: Voxels, factor: int) -> Children:
    """Return the children that voxels were made from, by `space_to_channel` or a pool by `factor`.

    Voxels remember them as long as they keep their coordinates: through `replace_features`,
    arithmetic and convolutions of stride 1, but not through copies, pickles or a change of device.

    Raises:
        ValueError: none are remembered.
    """
    children = voxels.extra_attributes.get(SPATIAL_CACHE, {}).get(_key(factor))
    if not isinstance(children, Children):
        raise ValueError(
            f"these voxels do not remember their children under factor {factor}; pass a "
            "subdivision, voxels with the same rows and one bool per child, or start from voxels "
            "that SparseSpatial2Channel or SparseDownsample made with the same factor"
        )
    return children


def active_children(voxels: Voxels, active: Tensor, factor: int) -> Children:
    """Return the children whose slot is active.

    Args:
        voxels: M parents.
        active: (M, factor ** 3) bool, on the same device.
        factor: fine cells per coarse cell along each axis.

    Returns:
        Children ordered by parent, then by slot. Cells stay in the dtype of the parents; the tensor
        stride is divided by `factor`, or unknown where it is no multiple.

    Raises:
        ValueError: the shape of `active` is another one, voxels repeat, or a child is outside the
            int32 range.
    """
    if active.shape != (len(voxels), factor**3):
        raise ValueError(
            f"a subdivision needs one column per child, shape {(len(voxels), factor**3)}, "
            f"got {tuple(active.shape)}"
        )
    coords = voxels.batched_coordinates
    _ = coords.index
    rows, slots = active.nonzero().unbind(1)
    steps = _steps(factor, coords.device)
    cells = coords.tensor.long().index_select(0, rows) * factor
    cells = cells + slots.unsqueeze(1) // steps % factor
    CellBox.around(cells, coords.batch_size)
    clouds = coords.batch_indices.index_select(0, rows)
    offsets = offsets_from_counts(
        clouds.bincount(minlength=coords.batch_size), coords.offsets.dtype
    )
    fine = IntCoords.trusted(cells.to(coords.dtype), offsets)
    edge = _divided(coords.tensor_stride, factor)
    return Children(fine.with_stride(edge), rows, slots, {})


def children_for(voxels: Voxels, subdivision: Voxels | Children | None, factor: int) -> Children:
    """Return the children that a subdivision asks for, or those that are remembered.

    Args:
        voxels: M parents.
        subdivision: voxels with the same rows and bool or 0/1 features (M, factor ** 3); children
            that are known already; or `None` for the remembered ones.
        factor: fine cells per coarse cell along each axis.

    Raises:
        TypeError: the subdivision is something else.
        ValueError: it has other rows, another width or values other than 0 and 1, or nothing is
            remembered.
    """
    if subdivision is None:
        return remembered_children(voxels, factor)
    if isinstance(subdivision, Children):
        return subdivision
    check_same_sites(voxels, subdivision, "subdivision")
    values = subdivision.batched_features.tensor
    active = values.bool()
    if values.dtype != torch.bool and not torch.equal(active.to(values.dtype), values):
        wrong = values[values != active.to(values.dtype)][0].item()
        raise ValueError(
            f"a subdivision holds bools, or 0 and 1, got {wrong}; turn logits into bools with "
            "subdivision.replace_features(logits > 0)"
        )
    return active_children(voxels, active, factor)


def check_same_sites(voxels: Voxels, other: object, name: str) -> None:
    """Check that an argument is voxels at the same sites, row by row.

    Raises:
        TypeError: it is not `Voxels`.
        ValueError: its rows are others.
    """
    if not isinstance(other, Voxels):
        raise TypeError(f"{name} must be Voxels, got {type(other).__name__}")
    ours, theirs = voxels.batched_coordinates, other.batched_coordinates
    if ours is theirs:
        return
    if not same_offsets(ours.offsets, theirs.offsets):
        raise ValueError(
            f"{name} must have the rows of the voxels that it divides: offsets "
            f"{ours.offsets.tolist()}, got {theirs.offsets.tolist()}"
        )
    if ours.device != theirs.device:
        raise ValueError(f"{name} is on {theirs.device} but the voxels are on {ours.device}")
    if not torch.equal(ours.tensor.long(), theirs.tensor.long()):
        row = int((ours.tensor != theirs.tensor).any(dim=1).nonzero()[0, 0])
        raise ValueError(
            f"{name} must have the rows of the voxels that it divides, but row {row} is "
            f"{theirs.tensor[row].tolist()} instead of {ours.tensor[row].tolist()}"
        )


def _steps(factor: int, device: torch.device) -> Tensor:
    return torch.tensor([1, factor, factor**2], device=device)


def _key(factor: int) -> tuple[str, int]:
    return "children", factor


def _divided(edge: Triple | None, factor: int) -> Triple | None:
    if edge is None or any(size % factor for size in edge):
        return None
    x, y, z = (size // factor for size in edge)
    return x, y, z
