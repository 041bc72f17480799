"""How a boundary treats its state: the switches, in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

StateKind = Literal["written", "read_and_written"]
StateDeclaration = str | Iterable[str] | Mapping[str, StateKind]

_KINDS = ("written", "read_and_written")


@dataclasses.dataclass(frozen=True)
class ReplayOptions:
    """What a boundary keeps through its replays, and what it checks.

    Args:
        state: buffers to keep besides those found and learned: a name, several names, or a mapping
            from name to `"written"` (a forward writes it and its output never depends on it) or
            `"read_and_written"` (the default). A name is that of a buffer or of a parameter that
            needs no gradient, or its dotted path below the boundary.
        learn: find other written buffers by watching forwards.
        guard: refuse a replay when a parameter, buffer or nested input moved after the forward.
        strict_state: raise where a replay writes a buffer that nothing preserves, instead of
            warning.
        allow_compile: let `torch.compile` trace the boundary when its only state are running
            statistics of torch's own norm layers.

    Raises:
        TypeError: a name is not a string, or a switch is not a bool.
        ValueError: an unknown kind of state.
    """

    state: StateDeclaration | None = None
    learn: bool = True
    guard: bool = True
    strict_state: bool = False
    allow_compile: bool = False

    def __post_init__(self) -> None:
        """Check the values and give `state` its one form, a mapping."""
        for switch in ("learn", "guard", "strict_state", "allow_compile"):
            value = getattr(self, switch)
            if not isinstance(value, bool):
                raise TypeError(f"{switch} must be True or False, got {value!r}.")
        object.__setattr__(self, "state", _normalised_state(self.state))

    def declared(self, path: str, name: str) -> StateKind | None:
        """The declared kind of tensor `name` in the module at dotted `path`, if any."""
        assert isinstance(self.state, Mapping)
        full = f"{path}.{name}" if path else name
        return self.state.get(full) or self.state.get(name)


def _normalised_state(state: StateDeclaration | None) -> dict[str, StateKind]:
    if state is None:
        return {}
    if isinstance(state, str):
        state = [state]
    if not isinstance(state, Mapping):
        try:
            state = dict.fromkeys(state, "read_and_written")
        except TypeError:
            raise TypeError(
                f"state must be a buffer name, several, or a mapping to a kind, got {state!r}."
            ) from None
    for name, kind in state.items():
        if not isinstance(name, str):
            raise TypeError(f"A name in state must be a string, got {name!r}.")
        if kind not in _KINDS:
            raise ValueError(
                f"Unknown kind of state {kind!r} for {name!r}: use 'written' when the output never "
                "depends on it, else 'read_and_written'."
            )
    return dict(state)
