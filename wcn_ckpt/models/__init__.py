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

__all__ = [
    "MinkUNet14",
    "MinkUNet18",
    "MinkUNet34",
    "MinkUNet50",
    "MinkUNet101",
    "MinkUNetBase",
]
