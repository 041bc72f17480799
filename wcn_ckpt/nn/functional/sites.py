"""Output voxels of sparse convolutions and pools.

Derived sites are cached on the coordinates that they come from, so two ops with the same stride
give one and the same coordinate object, with rows sorted by `(cloud, x, y, z)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wcn_ckpt.geometry.cells import unique_cells
from wcn_ckpt.geometry.coordinates import IntCoords, Triple
from wcn_ckpt.geometry.offsets import offsets_from_counts
from wcn_ckpt.geometry.serialization import PointOrdering, serialize
from wcn_ckpt.nn.functional.kernel_maps import KernelMap, KernelShape, kernel_map

UNIT: Triple = (1, 1, 1)


def convolution_sites(
    coords: IntCoords,
    kernel: KernelShape,
    target: IntCoords | None = None,
    transposed: bool = False,
    generative: bool = False,
    order: PointOrdering = PointOrdering.RANDOM,
) -> tuple[IntCoords, KernelMap]:
    """Return the output voxels of a convolution and its kernel map.

    ========================  ==========================================  ====================
    mode                      output voxels                               tensor stride
    ========================  ==========================================  ====================
    stride 1                  those of the input, same rows               unchanged
    stride s                  `floor(input / s)`, each once               input * s
    onto a target             those of the target                         input * s
    transposed onto a target  those of the target                         the target's, else 1
    generative                input, strided by s, and all that a kernel  input * s
                              reaches from it
    transposed, generative    `s * input` and all that a kernel reaches   input / s
    ========================  ==========================================  ====================

    Args:
        coords: input voxels.
        kernel: size, stride and dilation.
        target: output voxels, where they are given.
        transposed: whether the input is the coarse side.
        generative: whether the output grows by the reach of the kernel.
        order: a Morton order to bring the output rows into; `RANDOM` leaves them as they are.

    Raises:
        ValueError: the combination has no meaning, a transposed convolution does not go to a
            finer tensor stride, or voxels repeat or leave the range of an int64 key.
    """
    _check_target(coords, target, transposed, generative)
    if transposed:
        if target is None:
            out = upsampled_sites(coords, kernel)
        else:
            out = target.with_stride(target.tensor_stride or UNIT)
        out = ordered_sites(out, order)
        return out, kernel_map(out, coords, kernel).transposed()
    edge = _times(coords.tensor_stride, kernel.stride)
    if target is not None:
        out = target.with_stride(edge)
    else:
        out = strided_sites(coords, kernel.stride)
        out = expanded_sites(out, kernel) if generative else out
    out = ordered_sites(out, order)
    return out, kernel_map(coords, out, kernel)


def strided_sites(coords: IntCoords, stride: Triple) -> IntCoords:
    """Return the parents `floor(cell / stride)` of voxels, each once."""
    if stride == UNIT:
        return coords

    def build() -> IntCoords:
        steps = coords.tensor.new_tensor(stride)
        parents = coords.tensor.div(steps, rounding_mode="floor")
        edge = _times(coords.tensor_stride, stride)
        return _unique_sites(coords, parents, coords.batch_indices, edge)

    return _derived(coords, ("strided", stride), build)


def expanded_sites(coords: IntCoords, kernel: KernelShape) -> IntCoords:
    """Return voxels and everything that the kernel reaches from them, each once."""

    def build() -> IntCoords:
        cells, clouds = _neighbourhood(coords, UNIT, kernel)
        return _unique_sites(coords, cells, clouds, coords.tensor_stride)

    return _derived(coords, ("expanded", kernel), build)


def upsampled_sites(coords: IntCoords, kernel: KernelShape) -> IntCoords:
    """Return `stride * cell + offset` for each voxel and kernel offset, each once.

    Raises:
        ValueError: the tensor stride of the voxels is not a multiple of the kernel's stride.
    """
    edge = coords.tensor_stride or UNIT
    if any(have % step for have, step in zip(edge, kernel.stride, strict=True)):
        raise ValueError(
            f"a generative transposed convolution with stride {kernel.stride} needs voxels whose "
            f"tensor stride is a multiple of it, got {coords.tensor_stride}; set tensor_stride= on "
            "the input"
        )

    def build() -> IntCoords:
        cells, clouds = _neighbourhood(coords, kernel.stride, kernel)
        x, y, z = (have // step for have, step in zip(edge, kernel.stride, strict=True))
        return _unique_sites(coords, cells, clouds, (x, y, z))

    return _derived(coords, ("upsampled", kernel), build)


def ordered_sites(coords: IntCoords, order: PointOrdering) -> IntCoords:
    """Return voxels with the rows of each cloud in Morton order; `RANDOM` changes nothing."""
    if order is PointOrdering.RANDOM:
        return coords

    def build() -> IntCoords:
        rows = serialize(coords.tensor, coords.offsets, order).permutation
        return coords.with_rows(coords.tensor[rows], coords.offsets)

    return _derived(coords, ("ordered", order), build)


def parent_rows(fine: IntCoords, coarse: IntCoords, stride: Triple) -> Tensor:
    """Return, for each fine voxel, the row of its parent `floor(cell / stride)`.

    Returns:
        (N,) int64 rows of `coarse`.

    Raises:
        ValueError: a voxel has no parent, or voxels of `coarse` repeat.
    """

    def build() -> Tensor:
        index = coarse.index
        keys = index.cloud_keys(fine.batch_indices)
        for axis, step in enumerate(stride):
            parents = fine.tensor[:, axis].long().div(step, rounding_mode="floor")
            keys = keys + index.axis_keys(parents, axis)
        rows, found = index.find(keys)
        if not found.all():
            orphan = (~found).nonzero()[0, 0]
            raise ValueError(
                f"{int((~found).sum())} of {len(fine)} fine voxels have no parent under stride "
                f"{stride}; the first is {fine.tensor[orphan].tolist()} in row {int(orphan)}. The "
                "coarse voxels must come from a pool or convolution of the fine ones"
            )
        return rows

    return fine.cache.get_paired(coarse.cache, ("parents", stride), build)


def _check_target(
    coords: IntCoords, target: IntCoords | None, transposed: bool, generative: bool
) -> None:
    if target is None:
        if transposed and not generative:
            raise ValueError("a transposed convolution needs out_sparsity, the voxels to go to")
        return
    if generative:
        raise ValueError("a generative convolution makes its own voxels; drop out_sparsity")
    if target.batch_size != coords.batch_size or target.device != coords.device:
        raise ValueError(
            f"out_sparsity has {target.batch_size} clouds on {target.device}, the input "
            f"{coords.batch_size} on {coords.device}; they must agree"
        )
    here, there = coords.tensor_stride or UNIT, target.tensor_stride or UNIT
    if transposed and not any(out < have for out, have in zip(there, here, strict=True)):
        raise ValueError(
            f"a transposed convolution goes to a finer grid, but the input has tensor stride "
            f"{here} and out_sparsity {there}; set tensor_stride= where it was lost"
        )


def _neighbourhood(coords: IntCoords, scale: Triple, kernel: KernelShape) -> tuple[Tensor, Tensor]:
    """Return all `scale * cell + offset` and their clouds, with repetitions."""
    cells = coords.tensor.long() * torch.tensor(scale, device=coords.device)
    reached = cells.unsqueeze(0) + kernel.offsets(coords.device).unsqueeze(1)
    return reached.reshape(-1, 3), coords.batch_indices.repeat(kernel.volume)


def _unique_sites(
    like: IntCoords, cells: Tensor, clouds: Tensor, tensor_stride: Triple | None
) -> IntCoords:
    unique, counts, _ = unique_cells(cells, clouds, like.batch_size)
    offsets = offsets_from_counts(counts, like.offsets.dtype)
    return IntCoords.trusted(unique.to(like.dtype), offsets).with_stride(tensor_stride)


def _times(tensor_stride: Triple | None, stride: Triple) -> Triple | None:
    if stride == UNIT:
        return tensor_stride
    x, y, z = (a * b for a, b in zip(tensor_stride or UNIT, stride, strict=True))
    return x, y, z


def _derived(
    coords: IntCoords, key: tuple[object, ...], build: Callable[[], IntCoords]
) -> IntCoords:
    return coords.cache.get((*key, coords.tensor_stride), build)
