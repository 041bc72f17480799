"""Checkpoint the blocks of a PyTorch model without changing what the model computes."""

from __future__ import annotations

from wcn_ckpt.checkpointing import (
    GradientCheckpointingMixin,
    GradientCheckpointingModelMixin,
    configure_gradient_checkpointing,
    is_replaying,
    preserve_module_buffers,
)

__version__ = "0.1.0"

__all__ = [
    "GradientCheckpointingMixin",
    "GradientCheckpointingModelMixin",
    "__version__",
    "configure_gradient_checkpointing",
    "is_replaying",
    "preserve_module_buffers",
]
