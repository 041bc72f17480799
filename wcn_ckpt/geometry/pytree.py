"""How torch's pytree sees a geometry: as its feature and coordinate tensors.

`torch.utils.checkpoint` looks for devices among the leaves of its arguments, and
`DistributedDataParallel` for tensors among the leaves of its output. A geometry that were a leaf
itself would hide both: no accelerator RNG state would be kept for a replay, and no gradient would
be waited for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils import _pytree as pytree

from wcn_ckpt.geometry.cache import lasting_attributes
from wcn_ckpt.geometry.coordinates import BatchedCoordinates, IntCoords
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.offsets import same_offsets

if TYPE_CHECKING:
    from wcn_ckpt.geometry.base import Geometry


@dataclass(frozen=True, eq=False)
class GeometryStructure:
    """What is left of a geometry when its tensors are taken out."""

    kind: type[Geometry]
    coordinates: BatchedCoordinates
    attributes: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        """Same kind, clouds, stride and attribute names."""
        return (
            isinstance(other, GeometryStructure)
            and self._signature() == other._signature()
            and same_offsets(self.coordinates.offsets, other.coordinates.offsets)
        )

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash(self._signature())

    def _signature(self) -> tuple[object, ...]:
        coordinates = self.coordinates
        stride = coordinates.tensor_stride if isinstance(coordinates, IntCoords) else None
        return self.kind, stride, frozenset(self.attributes)


def register_geometry(kind: type[Geometry]) -> None:
    """Register one kind of geometry as a pytree node."""
    pytree.register_pytree_node(kind, _flatten, _unflatten)


def _flatten(geometry: Geometry) -> tuple[list[Tensor], GeometryStructure]:
    structure = GeometryStructure(
        type(geometry), geometry.batched_coordinates, geometry.extra_attributes
    )
    return [geometry.batched_features.tensor, geometry.coordinate_tensor], structure


def _unflatten(leaves: Iterable[Any], structure: GeometryStructure) -> Geometry:
    """Rebuild without checks: the leaves may be anything, for instance `None`."""
    features, cells = leaves
    coordinates, attributes = structure.coordinates, dict(structure.attributes)
    if cells is not coordinates.tensor:
        coordinates = coordinates.with_rows(cells, coordinates.offsets)
        attributes = lasting_attributes(attributes)
    return structure.kind.from_parts(
        coordinates, CatFeatures.trusted(features, coordinates.offsets), attributes
    )
