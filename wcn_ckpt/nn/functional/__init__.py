"""Functions on the features and coordinates of geometries."""

from __future__ import annotations

from wcn_ckpt.nn.functional.cloud_attention import sparse_scaled_dot_product_attention
from wcn_ckpt.nn.functional.convolution import sparse_conv
from wcn_ckpt.nn.functional.kernel_maps import KernelMap, KernelShape, kernel_map
from wcn_ckpt.nn.functional.pixel_shuffle import pixel_shuffle_3d
from wcn_ckpt.nn.functional.pooling import sparse_pool, sparse_unpool
from wcn_ckpt.nn.functional.resampling import channel_to_space, space_to_channel
from wcn_ckpt.nn.functional.sites import convolution_sites
from wcn_ckpt.nn.functional.unpooling import point_unpool

__all__ = [
    "KernelMap",
    "KernelShape",
    "channel_to_space",
    "convolution_sites",
    "kernel_map",
    "pixel_shuffle_3d",
    "point_unpool",
    "space_to_channel",
    "sparse_conv",
    "sparse_pool",
    "sparse_scaled_dot_product_attention",
    "sparse_unpool",
]
