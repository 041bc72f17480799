"""Modules and mixins, under the names that users import."""

from __future__ import annotations

from wcn_ckpt.checkpointing import (
    GradientCheckpointingMixin,
    GradientCheckpointingModelMixin,
    configure_gradient_checkpointing,
    preserve_module_buffers,
)
from wcn_ckpt.nn.modules.activations import GELU, DropPath, ReLU, SiLU
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.feature_layers import BatchNorm, LayerNorm, Linear
from wcn_ckpt.nn.modules.mink_blocks import BasicBlock, BottleneckBlock, ConvBlock, ConvTrBlock
from wcn_ckpt.nn.modules.point_to_voxel import PointToVoxel
from wcn_ckpt.nn.modules.sequential import Sequential, TupleSequential
from wcn_ckpt.nn.modules.sparse_conv import STRIDED_CONV_MODE, SparseConv3d, StridedConvMode
from wcn_ckpt.nn.modules.sparse_pool import (
    SparseMaxPool,
    SparseMinPool,
    SparsePool,
    SparseUnpool,
)

__all__ = [
    "GELU",
    "STRIDED_CONV_MODE",
    "BasicBlock",
    "BatchNorm",
    "BottleneckBlock",
    "ConvBlock",
    "ConvTrBlock",
    "DropPath",
    "GradientCheckpointingMixin",
    "GradientCheckpointingModelMixin",
    "LayerNorm",
    "Linear",
    "PointToVoxel",
    "ReLU",
    "Sequential",
    "SiLU",
    "SparseConv3d",
    "SparseMaxPool",
    "SparseMinPool",
    "SparsePool",
    "SparseUnpool",
    "SpatialModule",
    "StridedConvMode",
    "TupleSequential",
    "configure_gradient_checkpointing",
    "preserve_module_buffers",
]
