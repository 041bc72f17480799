"""Replay options of a whole model, in one call."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from wcn_ckpt.checkpointing.replay.options import ReplayOptions, StateDeclaration


def replay_options(
    model: nn.Module,
    *,
    state: StateDeclaration | None = None,
    learn: bool | None = None,
    guard: bool | None = None,
    strict_state: bool | None = None,
    allow_compile: bool | None = None,
) -> int:
    """Change the replay options of every boundary in a model; those not given stay as they are.

    Args:
        model: root of the tree.
        state: buffers to keep besides those found and learned: a name, several names, or a mapping
            from name to `"written"` or `"read_and_written"`. See `ReplayOptions`.
        learn: find written buffers by watching forwards.
        guard: refuse a replay when something that the forward read has moved.
        strict_state: raise where a replay writes a buffer that nothing preserves.
        allow_compile: let `torch.compile` trace boundaries whose only state are norm statistics.

    Returns:
        The number of boundaries changed.

    Raises:
        TypeError: `model` is not an `nn.Module`, or a value has the wrong type.
        ValueError: an unknown kind of state, or the model has no boundary with such options.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"replay_options needs an nn.Module, got {model!r}.")
    given: dict[str, Any] = {
        "state": state,
        "learn": learn,
        "guard": guard,
        "strict_state": strict_state,
        "allow_compile": allow_compile,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    boundaries: list[Any] = [m for m in model.modules() if hasattr(m, "_replay_options")]
    if not boundaries:
        raise ValueError(
            f"{type(model).__name__} has no boundary, so there is nothing to set replay options "
            "on. Derive its blocks from GradientCheckpointingMixin, or make them boundaries with "
            "make_checkpointable(model, ...)."
        )
    if "state" in changes:
        changes["state"] = ReplayOptions(changes["state"]).state
    changed = [dataclasses.replace(m._replay_options, **changes) for m in boundaries]
    for boundary, options in zip(boundaries, changed, strict=True):
        boundary._replay_options = options
    return len(boundaries)
