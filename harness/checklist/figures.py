"""What is measured of one training step of both arms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BoundaryCalls:
    """What happened at one boundary in one training step."""

    name: str
    """Its path; empty for the model itself."""
    kind: str
    """Name of its class."""
    forwards: int
    """How often it was computed in the forward."""
    replays: int
    """How often it was computed again in the backward."""
    wanted: int
    """To how many of its computations in the forward a gradient came."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one arm costs."""

    saved_bytes: int | None
    """Bytes that exist after the forward and did not before it; None where that cannot be told."""
    peak_bytes: int | None
    """How far memory grew at most in a step: the resident set on CPU, the allocator on CUDA."""
    forward: float
    """Seconds, the median of some steps."""
    backward: float
    """Seconds, likewise."""
    optimizer: float
    """Seconds, likewise."""

    @property
    def step(self) -> float:
        """Seconds of a whole step."""
        return self.forward + self.backward + self.optimizer


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one training step of both arms showed."""

    device: str
    """Where it ran."""
    boundaries: tuple[BoundaryCalls, ...]
    """The boundaries of the judged arm that were computed."""
    declared: int
    """How many modules say that checkpointing is enabled on them."""
    inputs: tuple[str, ...]
    """Types in what the model and its boundaries are given."""
    outputs: tuple[str, ...]
    """Types in what they return."""
    opaque: tuple[str, ...]
    """Types among them that could hold tensors and cannot be looked into."""
    ordinary: Costs
    """Costs of the ordinary arm."""
    judged: Costs
    """Costs of the judged arm."""
