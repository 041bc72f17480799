"""The parts of the dense flow model."""

from __future__ import annotations

from wcn_ckpt.nn.modules.dit import (
    FeedForwardNet,
    ModulatedTransformerBlock,
    ModulatedTransformerCrossBlock,
    MultiHeadAttention,
)
from wcn_ckpt.nn.modules.embeddings import RotaryPositionEmbedder, TimestepEmbedder
from wcn_ckpt.nn.modules.normalizations import LayerNorm32, MultiHeadRMSNorm

__all__ = [
    "FeedForwardNet",
    "LayerNorm32",
    "ModulatedTransformerBlock",
    "ModulatedTransformerCrossBlock",
    "MultiHeadAttention",
    "MultiHeadRMSNorm",
    "RotaryPositionEmbedder",
    "TimestepEmbedder",
]
