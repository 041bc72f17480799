"""Models built from checkpointed blocks."""

from __future__ import annotations

from wcn_ckpt.models.mink_unet import (
    MinkUNet14,
    MinkUNet18,
    MinkUNet34,
    MinkUNet50,
    MinkUNet101,
    MinkUNetBase,
)
from wcn_ckpt.models.point_transformer_v3 import PointTransformerV3
from wcn_ckpt.models.spaceformer import SpaCeFormer
from wcn_ckpt.models.trellis2 import (
    FlexiDualGridVaeDecoder,
    FlexiDualGridVaeEncoder,
    SLatFlowModel,
    SparseStructureDecoder,
    SparseStructureEncoder,
    SparseStructureFlowModel,
    SparseUnetVaeDecoder,
    SparseUnetVaeEncoder,
)

__all__ = [
    "FlexiDualGridVaeDecoder",
    "FlexiDualGridVaeEncoder",
    "MinkUNet14",
    "MinkUNet18",
    "MinkUNet34",
    "MinkUNet50",
    "MinkUNet101",
    "MinkUNetBase",
    "PointTransformerV3",
    "SLatFlowModel",
    "SpaCeFormer",
    "SparseStructureDecoder",
    "SparseStructureEncoder",
    "SparseStructureFlowModel",
    "SparseUnetVaeDecoder",
    "SparseUnetVaeEncoder",
]
