"""Pooling of sparse voxels, and its way back."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.geometry.coordinates import Triple
from wcn_ckpt.geometry.features import CatFeatures
from wcn_ckpt.geometry.reductions import Reduction, segment_reduce
from wcn_ckpt.nn.functional.kernel_maps import KernelShape, kernel_map
from wcn_ckpt.nn.functional.sites import parent_rows, strided_sites


def sparse_pool(
    voxels: Voxels, kernel_size: Triple, stride: Triple, reduction: Reduction = "max"
) -> Voxels:
    """Reduce the voxels in the window of each parent `floor(cell / stride)`.

    The window of parent q holds the voxels at `stride * q + offset`, with the offsets of a
    convolution kernel. Only voxels that exist take part.

    Args:
        voxels: N voxels with C channels.
        kernel_size: window size per axis.
        stride: input cells per output cell, per axis.
        reduction: see `wcn_ckpt.geometry.reductions.segment_reduce`; `"random"` copies one voxel of
            each window, drawn with torch's generator.

    Returns:
        Parents sorted by `(cloud, x, y, z)`, with the tensor stride times `stride`. A parent whose
        window is empty (the kernel is smaller than the stride) has zeros.

    Warns:
        UserWarning: a window is empty.

    Raises:
        ValueError: voxels repeat.
    """
    coords = voxels.batched_coordinates
    out = strided_sites(coords, stride)
    in_rows, out_rows = kernel_map(coords, out, KernelShape(kernel_size, stride)).all_pairs()
    empty = int((out_rows.bincount(minlength=len(out)) == 0).sum())
    if empty:
        warnings.warn(
            f"{empty} of {len(out)} pooling windows are empty and give zeros: kernel_size "
            f"{kernel_size} does not cover stride {stride}",
            stacklevel=2,
        )
    rows = voxels.feature_tensor.index_select(0, in_rows)
    pooled = segment_reduce(rows, out_rows, len(out), reduction)
    return voxels.replace(out, CatFeatures.trusted(pooled, out.offsets))


def sparse_unpool(coarse: Voxels, fine: Voxels, stride: Triple, concat: bool = True) -> Voxels:
    """Give each fine voxel the features of its parent.

    Args:
        coarse: voxels with C channels.
        fine: voxels with D channels whose parents `floor(cell / stride)` are all in `coarse`.
        stride: fine cells per coarse cell, per axis.
        concat: whether the fine voxels keep their own features too, in front.

    Returns:
        The fine voxels with D + C channels, or C.

    Raises:
        ValueError: a fine voxel has no parent.
    """
    if coarse.batch_size != fine.batch_size:
        raise ValueError(
            f"the coarse side has {coarse.batch_size} clouds and the fine side {fine.batch_size}"
        )
    parents = parent_rows(fine.batched_coordinates, coarse.batched_coordinates, stride)
    unpooled: Tensor = coarse.feature_tensor.index_select(0, parents)
    if concat:
        unpooled = torch.cat([fine.feature_tensor, unpooled], dim=1)
    return fine.replace_features(unpooled)
