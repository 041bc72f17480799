"""Modes and settings of modules that a replay switches to those of its forward, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from wcn_ckpt.checkpointing.replay.known import NORM_SETTINGS, norm_settings
from wcn_ckpt.checkpointing.replay.plan import ReplayPlan

Switched = tuple[Any, str, Any]
"""What has a setting, the name of the setting, and its value."""


class Settings(NamedTuple):
    """Settings that a block may change as it runs, and set back at its end.

    Attributes:
        flags: whether parameters need a gradient.
        norms: settings of norm layers.
    """

    flags: list[bool]
    norms: list[tuple[Any, ...]]


def settings_of(plan: ReplayPlan) -> Settings:
    """Read the settings of what a boundary holds."""
    return Settings(
        [parameter.requires_grad for parameter in plan.parameters],
        list(map(norm_settings, plan.norm_layers)),
    )


def restore_settings(plan: ReplayPlan, settings: Settings) -> bool:
    """Undo what a block switched as it ran: a replay ends before the block does.

    Returns:
        Whether it had switched anything.
    """
    wanted: list[Switched] = [
        (parameter, "requires_grad", flag)
        for parameter, flag in zip(plan.parameters, settings.flags, strict=True)
    ]
    for norm, values in zip(plan.norm_layers, settings.norms, strict=True):
        wanted += [(norm, *setting) for setting in zip(NORM_SETTINGS, values, strict=True)]
    return bool(set_all(wanted))


def modes_of(
    plan: ReplayPlan, training: Sequence[bool], tracking: Sequence[bool]
) -> list[Switched]:
    """List the modes of a forward.

    Args:
        plan: what the boundary holds.
        training: modes of its modules.
        tracking: whether its norm layers update running statistics.
    """
    return [
        *((m, "training", mode) for m, mode in zip(plan.modules, training, strict=True)),
        *(
            (norm, "track_running_stats", flag)
            for norm, flag in zip(plan.norm_layers, tracking, strict=True)
        ),
    ]


def flags_of(parameters: Iterable[tuple[Tensor, bool]]) -> list[Switched]:
    """List whether parameters needed a gradient."""
    return [(parameter, "requires_grad", flag) for parameter, flag in parameters]


def set_all(wanted: Iterable[Switched]) -> list[Switched]:
    """Set what is not as wanted; return the same with the values until then."""
    switched = []
    for owner, name, value in wanted:
        present = getattr(owner, name)
        if present is not value and present != value:
            switched.append((owner, name, present))
            setattr(owner, name, value)
    return switched
