"""What the parts of a geometry must look like, and how they become one."""

from __future__ import annotations

from collections.abc import Sequence, Sized

import torch
from torch import Tensor

from wcn_ckpt.geometry.coordinates import BatchedCoordinates
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.offsets import same_offsets


def check_forms(
    coordinates: BatchedCoordinates | Tensor | Sequence[Tensor],
    features: CatFeatures | Tensor | Sequence[Tensor],
    offsets: Tensor | None,
) -> None:
    """Check that both parts come in the same form, with lengths that agree.

    Raises:
        TypeError: one part is a list and the other a tensor, or something else altogether.
        ValueError: lengths differ, or concatenated tensors come without offsets.
    """
    if isinstance(coordinates, (list, tuple)) and isinstance(features, (list, tuple)):
        _check_lists(coordinates, features)
        return
    for part, kinds in (
        (coordinates, (Tensor, BatchedCoordinates)),
        (features, (Tensor, CatFeatures)),
    ):
        if not isinstance(part, kinds):
            raise TypeError(
                "coordinates and features must both be lists (one tensor per cloud) or both be "
                f"tensors with offsets, got {type(coordinates).__name__} and "
                f"{type(features).__name__}"
            )
    if isinstance(coordinates, BatchedCoordinates):
        if offsets is not None and not same_offsets(offsets, coordinates.offsets):
            raise ValueError(
                f"the coordinates have offsets {coordinates.offsets.tolist()} of their own, got "
                f"offsets={offsets.tolist()}; drop the argument"
            )
        offsets = coordinates.offsets
    if offsets is None:
        raise ValueError(
            "concatenated tensors need offsets, the (B + 1,) first rows of the clouds and N; "
            f"for a single cloud pass offsets=[0, {_num_rows(coordinates, 'coordinates')}]"
        )
    num_coordinates = _num_rows(coordinates, "coordinates")
    num_features = _num_rows(features, "features")
    if not num_coordinates == num_features == offsets[-1]:
        raise ValueError(
            f"got {num_coordinates} coordinate rows, {num_features} feature rows and offsets "
            f"that end at {int(offsets[-1])}; the three must be equal"
        )


def _check_lists(coordinates: Sequence[Tensor], features: Sequence[Tensor]) -> None:
    if len(coordinates) != len(features):
        raise ValueError(
            f"got {len(coordinates)} coordinate clouds and {len(features)} feature clouds; "
            "both lists need one tensor per cloud"
        )
    for b, (cells, rows) in enumerate(zip(coordinates, features, strict=True)):
        if not isinstance(cells, Tensor) or not isinstance(rows, Tensor):
            raise TypeError(
                f"cloud {b} needs two tensors, got {type(cells).__name__} and {type(rows).__name__}"
            )
        num_cells = _num_rows(cells, f"coordinates of cloud {b}")
        num_rows = _num_rows(rows, f"features of cloud {b}")
        if num_cells != num_rows:
            raise ValueError(
                f"cloud {b} has {num_cells} coordinate rows and {num_rows} feature rows"
            )


def _num_rows(part: Sized, name: str) -> int:
    if isinstance(part, Tensor) and part.ndim == 0:
        raise ValueError(f"{name} must have two dimensions, got the scalar tensor {part.item()}")
    return len(part)


def wrap_features(
    features: CatFeatures | Tensor | Sequence[Tensor],
    offsets: Tensor,
    device: torch.device | str | None,
) -> CatFeatures:
    """Return features for coordinates with these offsets.

    Raises:
        TypeError: something is no tensor.
        ValueError: rows or offsets do not agree.
    """
    if isinstance(features, CatFeatures):
        if not same_offsets(features.offsets, offsets):
            raise ValueError(
                f"features have offsets {features.offsets.tolist()} and coordinates "
                f"{offsets.tolist()}; they must be equal"
            )
        wrapped = features
    elif isinstance(features, Tensor):
        wrapped = CatFeatures.fitted(features, offsets)
    else:
        wrapped = CatFeatures(features)
    return wrapped if device is None else wrapped.to(device)


def check_same_device(coordinates: BatchedCoordinates, features: CatFeatures) -> None:
    """Check that both parts of a geometry are in one place.

    Raises:
        ValueError: they are not.
    """
    if features.device != coordinates.device:
        raise ValueError(
            f"coordinates are on {coordinates.device} and features on {features.device}; "
            "move one, or pass device="
        )
