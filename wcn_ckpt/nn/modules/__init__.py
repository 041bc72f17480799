"""Modules and mixins, under the names that users import."""

from __future__ import annotations

from wcn_ckpt.checkpointing import (
    GradientCheckpointingMixin,
    GradientCheckpointingModelMixin,
    configure_gradient_checkpointing,
    is_replaying,
    preserve_module_buffers,
)
from wcn_ckpt.nn.modules.activations import GELU, DropPath, ReLU, SiLU
from wcn_ckpt.nn.modules.attention import PatchAttention
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.batched_linear import BatchedLinear
from wcn_ckpt.nn.modules.conv3d_blocks import (
    DownsampleBlock3d,
    ResBlock3d,
    UpsampleBlock3d,
    norm_layer_3d,
)
from wcn_ckpt.nn.modules.dit import (
    FeedForwardNet,
    ModulatedTransformerBlock,
    ModulatedTransformerCrossBlock,
    MultiHeadAttention,
)
from wcn_ckpt.nn.modules.embeddings import (
    RotaryPositionEmbedder,
    SinusoidalPositionEmbedder,
    TimestepEmbedder,
)
from wcn_ckpt.nn.modules.feature_layers import BatchNorm, LayerNorm, Linear
from wcn_ckpt.nn.modules.mink_blocks import BasicBlock, BottleneckBlock, ConvBlock, ConvTrBlock
from wcn_ckpt.nn.modules.mlp import FeedForward
from wcn_ckpt.nn.modules.normalizations import (
    ChannelLayerNorm32,
    GroupNorm32,
    LayerNorm32,
    MultiHeadRMSNorm,
)
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
from wcn_ckpt.nn.modules.sparse_convnext import (
    SparseConvNeXtBlock3d,
)
from wcn_ckpt.nn.modules.sparse_dit import (
    ModulatedSparseTransformerBlock,
    ModulatedSparseTransformerCrossBlock,
    SparseFeedForwardNet,
)
from wcn_ckpt.nn.modules.sparse_dit_attention import (
    SparseMultiHeadAttention,
    SparseRotaryPositionEmbedder,
    sparse_scaled_dot_product_attention,
)
from wcn_ckpt.nn.modules.sparse_pool import (
    SparseMaxPool,
    SparseMinPool,
    SparsePool,
    SparseUnpool,
)
from wcn_ckpt.nn.modules.sparse_resample import (
    SparseChannel2Spatial,
    SparseDownsample,
    SparseSpatial2Channel,
    SparseSubdivide,
    SparseUpsample,
)
from wcn_ckpt.nn.modules.sparse_unet import (
    SparseChannelToSpatialResBlock3d,
    SparseSpatialToChannelResBlock3d,
    SparseUNetDecoderStages,
    SparseUNetEncoderStages,
)
from wcn_ckpt.nn.modules.sync_batch_norm import SyncBatchNorm
from wcn_ckpt.nn.modules.window_attention import AllAttention, SpaceAttention

__all__ = [
    "GELU",
    "STRIDED_CONV_MODE",
    "AllAttention",
    "BasicBlock",
    "BatchNorm",
    "BatchedLinear",
    "BottleneckBlock",
    "ChannelLayerNorm32",
    "ConvBlock",
    "ConvTrBlock",
    "DownsampleBlock3d",
    "DropPath",
    "FeedForward",
    "FeedForwardNet",
    "GradientCheckpointingMixin",
    "GradientCheckpointingModelMixin",
    "GroupNorm32",
    "LayerNorm",
    "LayerNorm32",
    "Linear",
    "ModulatedSparseTransformerBlock",
    "ModulatedSparseTransformerCrossBlock",
    "ModulatedTransformerBlock",
    "ModulatedTransformerCrossBlock",
    "MultiHeadAttention",
    "MultiHeadRMSNorm",
    "PatchAttention",
    "PatchAttentionBlock",
    "PointToVoxel",
    "PostNormBlock",
    "PreNormBlock",
    "ReLU",
    "ResBlock3d",
    "RotaryPositionEmbedder",
    "Sequential",
    "SiLU",
    "SinusoidalPositionEmbedder",
    "SpaCeFormerBlockBase",
    "SpaceAttention",
    "SparseChannel2Spatial",
    "SparseChannelToSpatialResBlock3d",
    "SparseConv3d",
    "SparseConvNeXtBlock3d",
    "SparseDownsample",
    "SparseFeedForwardNet",
    "SparseMaxPool",
    "SparseMinPool",
    "SparseMultiHeadAttention",
    "SparsePool",
    "SparseRotaryPositionEmbedder",
    "SparseSpatial2Channel",
    "SparseSpatialToChannelResBlock3d",
    "SparseSubdivide",
    "SparseUNetDecoderStages",
    "SparseUNetEncoderStages",
    "SparseUnpool",
    "SparseUpsample",
    "SpatialModule",
    "StreamNormBlock",
    "StridedConvMode",
    "SyncBatchNorm",
    "TimestepEmbedder",
    "TupleSequential",
    "UpsampleBlock3d",
    "block_factory",
    "configure_gradient_checkpointing",
    "norm_layer_3d",
    "is_replaying",
    "preserve_module_buffers",
    "sparse_scaled_dot_product_attention",
]
