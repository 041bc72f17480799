"""The sparse variational autoencoder of TRELLIS.2 (Xiang et al., 2025).

Every block of a stage and every resampling block is a checkpoint boundary. There is no argument
`use_checkpoint`: enable it with `gradient_checkpointing_enable()`, by assigning the property
`use_checkpoint`, or per stage through `block_args`.
"""

from __future__ import annotations

from wcn_ckpt.models.trellis2.shape_decoders import (
    FlexiDualGridVaeDecoder,
    SparseUnetVaeDecoder,
)
from wcn_ckpt.models.trellis2.shape_encoders import (
    FlexiDualGridVaeEncoder,
    SparseUnetVaeEncoder,
)

__all__ = [
    "FlexiDualGridVaeDecoder",
    "FlexiDualGridVaeEncoder",
    "SparseUnetVaeDecoder",
    "SparseUnetVaeEncoder",
]
