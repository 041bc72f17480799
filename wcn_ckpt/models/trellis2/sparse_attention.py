"""The attention of the sparse flow model."""

from __future__ import annotations

from wcn_ckpt.nn.modules.sparse_dit_attention import (
    SparseMultiHeadAttention,
    SparseRotaryPositionEmbedder,
    sparse_scaled_dot_product_attention,
)

__all__ = [
    "SparseMultiHeadAttention",
    "SparseRotaryPositionEmbedder",
    "sparse_scaled_dot_product_attention",
]
