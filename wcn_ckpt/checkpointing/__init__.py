"""Gradient checkpointing of module boundaries, with their state kept through every replay.

The user-facing names are the Hugging Face ones: a leaf block derives from
`GradientCheckpointingMixin`, a model from `GradientCheckpointingModelMixin`, and any tree of
modules is switched by `configure_gradient_checkpointing`.
"""

from __future__ import annotations

from wcn_ckpt.checkpointing.boundary import GradientCheckpointingMixin
from wcn_ckpt.checkpointing.buffers import preserve_module_buffers
from wcn_ckpt.checkpointing.checkpointable import make_checkpointable, undo_checkpointable
from wcn_ckpt.checkpointing.errors import (
    ConcurrentReplayError,
    InactiveBoundaryWarning,
    ReplayError,
    ReplayGuardError,
    UnpreservedStateError,
    UnpreservedStateWarning,
)
from wcn_ckpt.checkpointing.model import (
    GradientCheckpointingModelMixin,
    configure_gradient_checkpointing,
)
from wcn_ckpt.checkpointing.options import replay_options
from wcn_ckpt.checkpointing.preserve import (
    preserve_replay_state,
    undo_preserve_replay_state,
)
from wcn_ckpt.checkpointing.replay.threads import is_replaying

__all__ = [
    "ConcurrentReplayError",
    "GradientCheckpointingMixin",
    "GradientCheckpointingModelMixin",
    "InactiveBoundaryWarning",
    "ReplayError",
    "ReplayGuardError",
    "UnpreservedStateError",
    "UnpreservedStateWarning",
    "configure_gradient_checkpointing",
    "is_replaying",
    "make_checkpointable",
    "preserve_module_buffers",
    "preserve_replay_state",
    "replay_options",
    "undo_checkpointable",
    "undo_preserve_replay_state",
]
