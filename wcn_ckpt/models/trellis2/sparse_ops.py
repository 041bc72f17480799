"""The resampling layers of TRELLIS.2."""

from __future__ import annotations

from wcn_ckpt.nn.modules.sparse_resample import (
    SparseChannel2Spatial,
    SparseDownsample,
    SparseSpatial2Channel,
    SparseSubdivide,
    SparseUpsample,
)

__all__ = [
    "SparseChannel2Spatial",
    "SparseDownsample",
    "SparseSpatial2Channel",
    "SparseSubdivide",
    "SparseUpsample",
]
