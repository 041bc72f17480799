"""Checkpoint the blocks of a PyTorch model without changing what the model computes."""

from __future__ import annotations

from wcn_ckpt.checkpointing import (
    ConcurrentReplayError,
    GradientCheckpointingMixin,
    GradientCheckpointingModelMixin,
    InactiveBoundaryWarning,
    ReplayError,
    ReplayGuardError,
    UnpreservedStateError,
    UnpreservedStateWarning,
    configure_gradient_checkpointing,
    is_replaying,
    make_checkpointable,
    preserve_module_buffers,
    preserve_replay_state,
    replay_options,
    undo_checkpointable,
    undo_preserve_replay_state,
)

__version__ = "0.1.0"

__all__ = [
    "ConcurrentReplayError",
    "GradientCheckpointingMixin",
    "GradientCheckpointingModelMixin",
    "InactiveBoundaryWarning",
    "ReplayError",
    "ReplayGuardError",
    "UnpreservedStateError",
    "UnpreservedStateWarning",
    "__version__",
    "configure_gradient_checkpointing",
    "is_replaying",
    "make_checkpointable",
    "preserve_module_buffers",
    "preserve_replay_state",
    "replay_options",
    "undo_checkpointable",
    "undo_preserve_replay_state",
]
