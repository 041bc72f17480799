"""Several geometries made into one, and one taken apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch

from wcn_ckpt.geometry.base import Geometry
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.offsets import offsets_from_counts, same_offsets
from wcn_ckpt.geometry.voxels import Voxels

G = TypeVar("G", bound=Geometry)


def cat(*geometries: G, dim: int = -1) -> G:
    """Concatenate the feature channels of geometries with the same rows.

    Args:
        *geometries: at least one, all with the same offsets.
        dim: the channel dimension, -1 or 1.

    Returns:
        The first geometry with the channels of all, in the order of the arguments.

    Raises:
        TypeError: something is no geometry.
        ValueError: nothing is given, offsets differ, or `dim` is not the channel dimension.
    """
    first = _first_of(geometries)
    if dim not in (-1, 1):
        raise ValueError(
            f"cat joins channels, dim -1 or 1, got {dim}; sparse_cat(..., dim=0) joins clouds"
        )
    for place, other in enumerate(geometries):
        if not same_offsets(first.offsets, other.offsets):
            raise ValueError(
                f"geometry {place} has offsets {other.offsets.tolist()} and geometry 0 "
                f"{first.offsets.tolist()}; channels join only on the same rows"
            )
    return first.replace_features(torch.cat([g.feature_tensor for g in geometries], dim=1))


def sparse_cat(geometries: Iterable[G], dim: int = 0) -> G:
    """Join batches into one batch (`dim=0`), or channels (any other `dim`; see `cat`).

    Args:
        geometries: at least one, of one kind, with the same channels and the same tensor stride.
        dim: 0 to append clouds, -1 or 1 to append channels.

    Returns:
        A geometry with the attributes of the first.

    Raises:
        TypeError: the kinds differ.
        ValueError: nothing is given, or channels, dtypes, devices or strides differ.
    """
    geometries = list(geometries)
    if dim != 0:
        return cat(*geometries, dim=dim)
    first = _first_of(geometries)
    for place, other in enumerate(geometries):
        if type(other) is not type(first):
            raise TypeError(
                f"geometry {place} is {type(other).__name__} and geometry 0 {type(first).__name__}"
            )
        if _signature(other) != _signature(first):
            raise ValueError(
                "batches join only with equal channels, tensor stride, coordinates and device: "
                f"geometry {place} has {_signature(other)} and geometry 0 {_signature(first)}"
            )
    counts = torch.cat([g.offsets.diff() for g in geometries])
    offsets = offsets_from_counts(counts, first.offsets.dtype)
    cells = torch.cat([g.coordinate_tensor for g in geometries])
    features = torch.cat([g.feature_tensor for g in geometries])
    joined = first.batched_coordinates.with_rows(cells, offsets)
    return first.replace(joined, CatFeatures.trusted(features, offsets))


def sparse_unbind(geometry: G) -> list[G]:
    """Return each cloud as a batch of one; the inverse of `sparse_cat`.

    Raises:
        TypeError: the argument is no geometry.
    """
    _first_of([geometry])
    return [geometry[cloud] for cloud in range(geometry.batch_size)]


def _first_of(geometries: Sequence[G]) -> G:
    if not geometries:
        raise ValueError("nothing to join: pass at least one geometry")
    for place, geometry in enumerate(geometries):
        if not isinstance(geometry, Geometry):
            raise TypeError(f"argument {place} is no geometry but {type(geometry).__name__}")
    return geometries[0]


def _signature(geometry: Geometry) -> tuple[object, ...]:
    stride = (geometry.tensor_stride or (1, 1, 1)) if isinstance(geometry, Voxels) else None
    cells = geometry.coordinate_tensor
    return geometry.num_channels, stride, cells.dtype, cells.device
