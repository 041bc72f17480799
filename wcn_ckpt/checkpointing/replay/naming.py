"""How messages call a boundary."""

from __future__ import annotations

from torch import nn


def name_of(boundary: nn.Module) -> str:
    """The name of a boundary in messages: its class, or what stands in its representation."""
    name: str = boundary._get_name()  # type: ignore[no-untyped-call]
    return name
