"""The models of TRELLIS.2 (Xiang et al., 2025): autoencoders and flow models."""

from __future__ import annotations

from wcn_ckpt.models.trellis2.shape_vae import (
    FlexiDualGridVaeDecoder,
    FlexiDualGridVaeEncoder,
    SparseUnetVaeDecoder,
    SparseUnetVaeEncoder,
)
from wcn_ckpt.models.trellis2.slat_flow import SLatFlowModel
from wcn_ckpt.models.trellis2.sparse_structure_flow import SparseStructureFlowModel
from wcn_ckpt.models.trellis2.sparse_structure_vae import (
    SparseStructureDecoder,
    SparseStructureEncoder,
)
from wcn_ckpt.models.trellis2.weights import convert_weights

__all__ = [
    "FlexiDualGridVaeDecoder",
    "FlexiDualGridVaeEncoder",
    "SLatFlowModel",
    "SparseStructureDecoder",
    "SparseStructureEncoder",
    "SparseStructureFlowModel",
    "SparseUnetVaeDecoder",
    "SparseUnetVaeEncoder",
    "convert_weights",
]
