"""Functions on the features and coordinates of geometries."""

from __future__ import annotations

from wcn_ckpt.nn.functional.convolution import sparse_conv
from wcn_ckpt.nn.functional.kernel_maps import KernelMap, KernelShape, kernel_map
from wcn_ckpt.nn.functional.pooling import sparse_pool, sparse_unpool
from wcn_ckpt.nn.functional.sites import convolution_sites
from wcn_ckpt.nn.functional.unpooling import point_unpool

__all__ = [
    "KernelMap",
    "KernelShape",
    "convolution_sites",
    "kernel_map",
    "point_unpool",
    "sparse_conv",
    "sparse_pool",
    "sparse_unpool",
]
