"""SpaCeFormer: attention along curves, inside windows and between all voxels of a cloud."""

from __future__ import annotations

from wcn_ckpt.models.spaceformer.space_former import (
    PostNormBlock,
    PreNormBlock,
    SpaCeFormer,
    SpaCeFormerBlockBase,
    StreamNormBlock,
    block_factory,
)

__all__ = [
    "PostNormBlock",
    "PreNormBlock",
    "SpaCeFormer",
    "SpaCeFormerBlockBase",
    "StreamNormBlock",
    "block_factory",
]
