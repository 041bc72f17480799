"""Occupied cells of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wcn_ckpt.geometry import dense
from wcn_ckpt.geometry.base import Geometry
from wcn_ckpt.geometry.coordinates import BatchedCoordinates, IntCoords, Triple, positive_triple
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.offsets import as_offsets, offsets_from_counts

if TYPE_CHECKING:
    from typing_extensions import Self

    from wcn_ckpt.geometry.points import Points

Stride = int | Sequence[int] | None


class Voxels(Geometry):
    """A batch of sparse voxel grids.

    Coordinates are int32 or int64 cells, each at most once in a cloud; one step is one cell at the
    current tensor stride. Repeated cells are refused by the first op that looks voxels up
    (convolution, pooling, `to_dense`), not at construction, where it would cost a sort.
    """

    coordinates_type = IntCoords

    batched_coordinates: IntCoords

    def __init__(
        self,
        batched_coordinates: IntCoords | Tensor | Sequence[Tensor],
        batched_features: CatFeatures | Tensor | Sequence[Tensor],
        offsets: Tensor | Sequence[int] | None = None,
        device: torch.device | str | None = None,
        tensor_stride: Stride = None,
        stride: Stride = None,
        **extra: Any,
    ) -> None:
        """Take what `Geometry` takes, and the tensor stride.

        Args:
            batched_coordinates: B tensors (N_b, 3) of cells, or one (N, 3).
            batched_features: B tensors (N_b, C), or one (N, C).
            offsets: (B + 1,) integers; required with concatenated tensors.
            device: where the tensors are put.
            tensor_stride: edge of a cell in cells of the finest grid, one integer or three.
            stride: another name of `tensor_stride`.
            **extra: attributes to carry along, such as `voxel_size`.

        Raises:
            TypeError: as `Geometry`; coordinates that are not int32 or int64.
            ValueError: as `Geometry`; cells outside the int32 range or too far apart for
                an int64 key; a stride that is not positive or given twice.
        """
        super().__init__(batched_coordinates, batched_features, offsets, device, **extra)
        edges = {
            positive_triple(given, "tensor_stride")
            for given in (tensor_stride, stride)
            if given is not None
        }
        if len(edges) > 1:
            raise ValueError(f"tensor_stride={tensor_stride!r} but its alias stride={stride!r}")
        for edge in edges:
            self.batched_coordinates = self.batched_coordinates.with_stride(edge)

    @classmethod
    def from_feats_coords(
        cls,
        feats: Tensor,
        coords: Tensor,
        offsets: Tensor | Sequence[int] | None = None,
        batch_size: int | None = None,
        **extra: Any,
    ) -> Self:
        """Build voxels from coordinates that carry their cloud in column 0.

        Args:
            feats: (N, C) features.
            coords: (N, 4) int32 or int64 rows `(cloud, x, y, z)`, the clouds in ascending order.
            offsets: (B + 1,) offsets to use instead of column 0.
            batch_size: number of clouds, where the last ones may be empty. By default the largest
                cloud number plus one, and 1 without rows.
            **extra: as the constructor, `tensor_stride` and `device` included.

        Raises:
            TypeError: something is no tensor, `coords` is not int32 or int64, or `batch_size` is no
                integer.
            ValueError: the clouds are not in order, negative or beyond `batch_size`, or the
                constructor refuses the rest.
        """
        for name, part in (("feats", feats), ("coords", coords)):
            if not isinstance(part, Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(part).__name__}")
        if coords.ndim != 2 or coords.shape[1] != 4:
            raise ValueError(
                f"coords must have rows (cloud, x, y, z), shape (N, 4), got {tuple(coords.shape)}"
            )
        if offsets is None:
            table = _offsets_from_clouds(coords[:, 0], batch_size)
        else:
            table = as_offsets(offsets)
            if batch_size not in (None, len(table) - 1):
                raise ValueError(f"batch_size is {batch_size} but offsets have {len(table) - 1}")
        return cls(coords[:, 1:].contiguous(), feats, table, **extra)

    @classmethod
    def from_dense(
        cls, tensor: Tensor, channel_dim: int = 1, tensor_stride: Stride = None, **extra: Any
    ) -> Self:
        """Build voxels from the cells of a dense grid that are not zero in every channel.

        Args:
            tensor: (B, C, X, Y, Z), or with the channels at `channel_dim`.
            channel_dim: where the channels are.
            tensor_stride: as the constructor.
            **extra: as the constructor.

        Returns:
            Voxels in row-major order of the grid; gradients flow to `tensor`.

        Raises:
            TypeError: `tensor` is no tensor.
            ValueError: `tensor` does not have five dimensions, or `channel_dim` is none of them.
        """
        features, cells, counts = dense.sparsify(tensor, channel_dim)
        offsets = offsets_from_counts(counts)
        return cls(cells, features, offsets, tensor_stride=tensor_stride, **extra)

    @property
    def tensor_stride(self) -> Triple | None:
        """Edge of a cell in cells of the finest grid, per axis; `None` is read as 1."""
        return self.batched_coordinates.tensor_stride

    stride = tensor_stride

    def replace(
        self,
        batched_coordinates: BatchedCoordinates | Tensor | None = None,
        batched_features: CatFeatures | Tensor | None = None,
        tensor_stride: Stride = None,
        **extra: Any,
    ) -> Self:
        """As `Geometry.replace`, and the tensor stride; it stays unless given."""
        result = super().replace(batched_coordinates, batched_features, **extra)
        if isinstance(batched_coordinates, Tensor):
            edge = self.tensor_stride
            result.batched_coordinates = result.batched_coordinates.with_stride(edge)
        if tensor_stride is not None:
            edge = positive_triple(tensor_stride, "tensor_stride")
            result.batched_coordinates = result.batched_coordinates.with_stride(edge)
        return result

    def to_dense(
        self,
        channel_dim: int = 1,
        spatial_shape: Sequence[int] | None = None,
        min_coords: Sequence[int] | None = None,
        max_coords: Sequence[int] | None = None,
    ) -> Tensor:
        """Write the features into a dense grid that is zero elsewhere.

        Without arguments the grid is the bounding box of the batch, and its corner is the least
        coordinate of the batch. With `spatial_shape` alone nothing is moved and every voxel must
        be inside. With `min_coords` or `max_coords` the box is theirs, and voxels outside it
        are left out.

        Args:
            channel_dim: where the channels go.
            spatial_shape: cells along x, y and z.
            min_coords: the cell that becomes (0, 0, 0).
            max_coords: the last cell of the box.

        Returns:
            (B, C, X, Y, Z) in the dtype of `feature_tensor`, or with the channels at
            `channel_dim`; differentiable.

        Raises:
            TypeError: a part of the box is not three integers.
            ValueError: voxels repeat, are outside `spatial_shape`, the box contradicts itself, or
                the grid has no `channel_dim`.
        """
        _ = self.batched_coordinates.index
        box = dense.choose_box(self.coordinate_tensor, spatial_shape, min_coords, max_coords)
        return dense.densify(
            self.feature_tensor,
            self.coordinate_tensor,
            self.batched_coordinates.batch_indices,
            self.batch_size,
            box,
            channel_dim,
        )

    def to_point(self, voxel_size: float | None = None) -> Points:
        """Return the corners of the voxels as points, with the same features.

        Args:
            voxel_size: edge of a voxel of the finest grid in units of length; by default the
                attribute `voxel_size`.

        Returns:
            float32 points at `cell * voxel_size * tensor_stride`.

        Raises:
            ValueError: no voxel size is known, or it is not positive and finite.
        """
        # Points know how to become voxels, so they cannot be imported before voxels are.
        from wcn_ckpt.geometry.points import Points
        from wcn_ckpt.geometry.voxelize import check_voxel_size

        edge = self.voxel_size if voxel_size is None else voxel_size
        if edge is None:
            raise ValueError("these voxels have no voxel_size; pass to_point(voxel_size=...)")
        check_voxel_size(edge)
        steps = torch.tensor(self.tensor_stride or (1, 1, 1), device=self.device)
        corners = self.coordinate_tensor.double() * steps * float(edge)
        return Points(corners.float(), self.batched_features, self.offsets)


def _offsets_from_clouds(clouds: Tensor, batch_size: int | None) -> Tensor:
    if clouds.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"coords must be int32 or int64, got {clouds.dtype}")
    descents = (clouds.diff() < 0).nonzero().flatten()
    if len(descents):
        row = int(descents[0]) + 1
        raise ValueError(
            f"coords must be sorted by cloud, but row {row} belongs to cloud {int(clouds[row])} "
            f"and the row before it to cloud {int(clouds[row - 1])}"
        )
    first, last = (int(clouds[0]), int(clouds[-1])) if len(clouds) else (0, 0)
    size = last + 1 if batch_size is None else batch_size
    if not isinstance(size, Integral) or isinstance(size, bool):
        raise TypeError(f"batch_size must be an integer, got {batch_size!r}")
    if batch_size is not None and size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if first < 0 or last >= size:
        raise ValueError(f"clouds are numbered from {first} to {last}, but batch_size is {size}")
    return offsets_from_counts(clouds.bincount(minlength=size))
