"""Small blocks of the lab's own: the README's, and one for each kind of state of a replay."""

from __future__ import annotations

from matrix.blocks.norms import CalledTwice, InstanceNormBlock, OwnNormBlock
from matrix.blocks.readme import MyBlock
from matrix.blocks.state import (
    CodebookBlock,
    DropoutBlock,
    RandomOrderBlock,
    ReboundBlock,
    SpectralNormBlock,
)

__all__ = [
    "CalledTwice",
    "CodebookBlock",
    "DropoutBlock",
    "InstanceNormBlock",
    "MyBlock",
    "OwnNormBlock",
    "RandomOrderBlock",
    "ReboundBlock",
    "SpectralNormBlock",
]
