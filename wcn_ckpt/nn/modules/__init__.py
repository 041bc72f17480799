"""Modules and mixins, under the names that users import."""

from __future__ import annotations

from wcn_ckpt.checkpointing import (
    GradientCheckpointingMixin,
    GradientCheckpointingModelMixin,
    configure_gradient_checkpointing,
    preserve_module_buffers,
)
from wcn_ckpt.nn.modules.activations import GELU, DropPath, ReLU, SiLU
from wcn_ckpt.nn.modules.attention import PatchAttention
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.batched_linear import BatchedLinear
from wcn_ckpt.nn.modules.feature_layers import BatchNorm, LayerNorm, Linear
from wcn_ckpt.nn.modules.mink_blocks import BasicBlock, BottleneckBlock, ConvBlock, ConvTrBlock
from wcn_ckpt.nn.modules.mlp import FeedForward
from wcn_ckpt.nn.modules.patch_attention_block import PatchAttentionBlock
from wcn_ckpt.nn.modules.point_to_voxel import PointToVoxel
from wcn_ckpt.nn.modules.sequential import Sequential, TupleSequential
from wcn_ckpt.nn.modules.space_attention import (
    PostNormBlock,
    PreNormBlock,
    SpaCeFormerBlockBase,
    StreamNormBlock,
    block_factory,
)
from wcn_ckpt.nn.modules.sparse_conv import STRIDED_CONV_MODE, SparseConv3d, StridedConvMode
from wcn_ckpt.nn.modules.sparse_pool import (
    SparseMaxPool,
    SparseMinPool,
    SparsePool,
    SparseUnpool,
)
from wcn_ckpt.nn.modules.window_attention import AllAttention, SpaceAttention

__all__ = [
    "GELU",
    "STRIDED_CONV_MODE",
    "AllAttention",
    "BasicBlock",
    "BatchNorm",
    "BatchedLinear",
    "BottleneckBlock",
    "ConvBlock",
    "ConvTrBlock",
    "DropPath",
    "FeedForward",
    "GradientCheckpointingMixin",
    "GradientCheckpointingModelMixin",
    "LayerNorm",
    "Linear",
    "PatchAttention",
    "PatchAttentionBlock",
    "PointToVoxel",
    "PostNormBlock",
    "PreNormBlock",
    "ReLU",
    "Sequential",
    "SiLU",
    "SpaCeFormerBlockBase",
    "SpaceAttention",
    "SparseConv3d",
    "SparseMaxPool",
    "SparseMinPool",
    "SparsePool",
    "SparseUnpool",
    "SpatialModule",
    "StreamNormBlock",
    "StridedConvMode",
    "TupleSequential",
    "block_factory",
    "configure_gradient_checkpointing",
    "preserve_module_buffers",
]
