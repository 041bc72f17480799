"""The parts of the sparse flow model."""

from __future__ import annotations

from wcn_ckpt.nn.modules.sparse_dit import (
    ModulatedSparseTransformerBlock,
    ModulatedSparseTransformerCrossBlock,
    SparseFeedForwardNet,
)
from wcn_ckpt.nn.modules.sparse_dit_attention import (
    SparseMultiHeadAttention,
    SparseRotaryPositionEmbedder,
)

__all__ = [
    "ModulatedSparseTransformerBlock",
    "ModulatedSparseTransformerCrossBlock",
    "SparseFeedForwardNet",
    "SparseMultiHeadAttention",
    "SparseRotaryPositionEmbedder",
]
