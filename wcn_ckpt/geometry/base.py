"""What points and voxels have in common: coordinates, features and free attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from wcn_ckpt.geometry.arithmetic import BinaryOp, RowArithmetic, check_same_rows, scalar_operand
from wcn_ckpt.geometry.autocast import autocast_dtype
from wcn_ckpt.geometry.cache import SPATIAL_CACHE, lasting_attributes
from wcn_ckpt.geometry.construction import check_forms, check_same_device, wrap_features
from wcn_ckpt.geometry.coordinates import BatchedCoordinates
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.offsets import as_offsets
from wcn_ckpt.geometry.pytree import register_geometry

if TYPE_CHECKING:
    from typing_extensions import Self


# Two tools look at dataclass fields and do not ask the pytree. DistributedDataParallel(
# find_unused_parameters=True) finds the tensors of an output in them. FSDP2 with mixed precision
# casts those of an input, and builds it anew with `dataclasses.replace`: features are to be cast,
# coordinates are not, so `batched_coordinates` is no dataclass and `free_attributes` no dict.
@dataclass(init=False, repr=False, eq=False)
class Geometry(RowArithmetic):
    """A batch of clouds: coordinates (N, 3), features (N, C) and any further attributes.

    Geometries are values: every operation returns a new one, and gradients flow through the
    features. `geometry[b]` is one cloud; `len(geometry)` is N. torch's pytree sees a geometry
    as its feature and coordinate tensors, so `torch.utils.checkpoint` and
    `DistributedDataParallel` find them.

    Arithmetic with a geometry that has the same rows, or with a number, combines the features and
    keeps the left operand's coordinates and attributes.
    """

    coordinates_type: ClassVar[type[BatchedCoordinates]] = BatchedCoordinates

    batched_coordinates: BatchedCoordinates
    batched_features: CatFeatures
    coordinate_tensor: Tensor
    free_attributes: Mapping[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Tell torch's pytree about each kind of geometry."""
        super().__init_subclass__(**kwargs)
        register_geometry(cls)

    def __init__(
        self,
        batched_coordinates: BatchedCoordinates | Tensor | Sequence[Tensor],
        batched_features: CatFeatures | Tensor | Sequence[Tensor],
        offsets: Tensor | Sequence[int] | None = None,
        device: torch.device | str | None = None,
        **extra: Any,
    ) -> None:
        """Take a list per cloud, or concatenated tensors with offsets.

        Args:
            batched_coordinates: B tensors (N_b, 3), or one (N, 3).
            batched_features: B tensors (N_b, C), or one (N, C); any dtype.
            offsets: (B + 1,) int32 or int64; required with concatenated tensors.
            device: where the tensors are put; offsets stay on the CPU.
            **extra: attributes to carry along, such as `voxel_size` or `ordering`.

        Raises:
            TypeError: a list is combined with a tensor, or a dtype is wrong.
            ValueError: lengths, offsets, shapes or devices do not agree, or coordinates are not
                valid.
        """
        extra.pop("coordinate_tensor", None)  # dataclasses.replace passes what fields repeat
        extra = {**extra.pop("free_attributes", {}), **extra}
        table = None if offsets is None else as_offsets(offsets)
        check_forms(batched_coordinates, batched_features, table)
        coordinates = self._wrap_coordinates(batched_coordinates, table, device)
        features = wrap_features(batched_features, coordinates.offsets, device)
        check_same_device(coordinates, features)
        self._assign(coordinates, features, extra)

    @classmethod
    def from_parts(
        cls, coordinates: BatchedCoordinates, features: CatFeatures, extra: dict[str, Any]
    ) -> Self:
        """Put parts that are known to fit together into a geometry, without checks."""
        self = cls.__new__(cls)
        self._assign(coordinates, features, extra)
        return self

    @property  # type: ignore[no-redef]
    def coordinate_tensor(self) -> Tensor:
        """(N, 3) coordinates."""
        return self.batched_coordinates.tensor

    @property  # type: ignore[no-redef]
    def free_attributes(self) -> Mapping[str, Any]:
        """A view of `extra_attributes` to read."""
        return MappingProxyType(self.extra_attributes)

    coordinates = coordinate_tensor

    @property
    def batch_indexed_coordinates(self) -> Tensor:
        """(N, 4) rows `(cloud, x, y, z)`, in dtype and on device of the coordinates."""
        return self.batched_coordinates.batch_indexed

    coords = batch_indexed_coordinates

    @property
    def feature_tensor(self) -> Tensor:
        """(N, C) features; while autocast is on for their device, cast to its dtype.

        The cast is differentiable and touches floating point features alone. The stored tensor,
        without a cast, is `batched_features.tensor`.
        """
        stored = self.batched_features.tensor
        dtype = autocast_dtype(stored)
        return stored if dtype is None or not stored.is_floating_point() else stored.to(dtype)

    features = feature_tensor
    feats = feature_tensor

    @property
    def offsets(self) -> Tensor:
        """(B + 1,) first row of each cloud, and N; on the CPU."""
        return self.batched_coordinates.offsets

    @property
    def batch_size(self) -> int:
        """Number of clouds B, empty ones included."""
        return self.batched_coordinates.batch_size

    @property
    def num_channels(self) -> int:
        """Number of feature channels C."""
        return self.batched_features.num_channels

    @property
    def num_spatial_dims(self) -> int:
        """Number of coordinates of a row."""
        return self.coordinate_tensor.shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the features and coordinates."""
        return self.batched_features.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the stored features."""
        return self.batched_features.dtype

    @property
    def voxel_size(self) -> Any:
        """Edge of a voxel in units of length, where somebody set it."""
        return self.extra_attributes.get("voxel_size")

    @property
    def ordering(self) -> Any:
        """Order of the rows inside each cloud, where somebody set it."""
        return self.extra_attributes.get("ordering")

    @property
    def spatial_cache(self) -> dict[Any, Any]:
        """A dictionary for tables of resampling ops, shared with later replacements.

        It appears on first use, and it is left behind when coordinates change or move, on copies
        and in pickles.
        """
        cache: dict[Any, Any] = self.extra_attributes.setdefault(SPATIAL_CACHE, {})
        return cache

    def __len__(self) -> int:
        """Number of rows N over all clouds."""
        return len(self.batched_coordinates)

    def __repr__(self) -> str:
        """Shapes, not values."""
        extra = sorted(lasting_attributes(self.extra_attributes))
        return (
            f"{type(self).__name__}(offsets={self.offsets.tolist()}, "
            f"num_channels={self.num_channels}, dtype={self.dtype}, device={self.device}"
            f"{', extra=' + str(extra) if extra else ''})"
        )

    def __getitem__(self, cloud: int) -> Self:
        """Return one cloud as a batch of one; attributes stay.

        Raises:
            IndexError: there is no such cloud.
            TypeError: the index is no integer.
        """
        if not isinstance(cloud, Integral) or isinstance(cloud, bool):
            raise TypeError(f"a geometry is indexed by the number of a cloud, got {cloud!r}")
        return self.from_parts(
            self.batched_coordinates.cloud(int(cloud)),
            self.batched_features.cloud(int(cloud)),
            lasting_attributes(self.extra_attributes),
        )

    def replace_features(self, features: CatFeatures | Tensor) -> Self:
        """Return the same sites with other features (N, C'); gradients flow to them.

        Raises:
            TypeError: they are no tensor.
            ValueError: they are not two-dimensional, or not N, or on another device.
        """
        if not isinstance(features, (Tensor, CatFeatures)):
            raise TypeError(f"features must be a tensor (N, C), got {features!r}")
        return self.replace(batched_features=features)

    def replace(
        self,
        batched_coordinates: BatchedCoordinates | Tensor | None = None,
        batched_features: CatFeatures | Tensor | None = None,
        **extra: Any,
    ) -> Self:
        """Return a geometry with some parts exchanged.

        Args:
            batched_coordinates: new coordinates; a bare tensor has the offsets of the old ones.
            batched_features: new features; a bare tensor has the offsets of the coordinates.
            **extra: attributes to add or override; the others stay.

        Raises:
            ValueError: row counts, offsets or devices do not agree.
            TypeError: a part has the wrong type.
        """
        coordinates = self.batched_coordinates
        kept = self.extra_attributes
        if batched_coordinates is not None and batched_coordinates is not coordinates:
            offsets = self.offsets if isinstance(batched_coordinates, Tensor) else None
            coordinates = self._wrap_coordinates(batched_coordinates, offsets, None)
            kept = lasting_attributes(self.extra_attributes)
        features = self.batched_features if batched_features is None else batched_features
        wrapped = wrap_features(features, coordinates.offsets, None)
        check_same_device(coordinates, wrapped)
        return self.from_parts(coordinates, wrapped, {**kept, **extra})

    def to(
        self,
        device: torch.device | str | torch.dtype | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Return a geometry on another device or with features of another dtype.

        Coordinates change device only. The tensor stride stays; tables derived from coordinates
        stay behind when the device changes.
        """
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        where = self.device if device is None else device
        coordinates = self.batched_coordinates.to(where)
        features = self.batched_features.tensor.to(where, dtype or self.dtype)
        stays = coordinates is self.batched_coordinates
        return self.from_parts(
            coordinates,
            CatFeatures.trusted(features, coordinates.offsets),
            dict(self.extra_attributes) if stays else lasting_attributes(self.extra_attributes),
        )

    def half(self) -> Self:
        """Return a geometry with float16 features."""
        return self.to(dtype=torch.float16)

    def float(self) -> Self:
        """Return a geometry with float32 features."""
        return self.to(dtype=torch.float32)

    def double(self) -> Self:
        """Return a geometry with float64 features."""
        return self.to(dtype=torch.float64)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but derived tables."""
        return {**self.__dict__, "extra_attributes": lasting_attributes(self.extra_attributes)}

    def _assign(
        self, coordinates: BatchedCoordinates, features: CatFeatures, extra: dict[str, Any]
    ) -> None:
        self.batched_coordinates = coordinates
        self.batched_features = features
        self.extra_attributes: dict[str, Any] = extra

    def _wrap_coordinates(
        self,
        coordinates: BatchedCoordinates | Tensor | Sequence[Tensor],
        offsets: Tensor | None,
        device: torch.device | str | None,
    ) -> BatchedCoordinates:
        if not isinstance(coordinates, BatchedCoordinates):
            return self.coordinates_type(coordinates, offsets, device)
        if not isinstance(coordinates, self.coordinates_type):
            raise TypeError(
                f"{type(self).__name__} needs {self.coordinates_type.__name__}, "
                f"got {type(coordinates).__name__}"
            )
        return coordinates if device is None else coordinates.to(device)

    def _combine(self, other: object, op: BinaryOp) -> Self:
        mine = self.feature_tensor
        if isinstance(other, Geometry):
            theirs = other.feature_tensor
            check_same_rows(self.offsets, mine, other.offsets, theirs)
            return self.replace_features(op(mine, theirs))
        return self.replace_features(op(mine, scalar_operand(other)))
