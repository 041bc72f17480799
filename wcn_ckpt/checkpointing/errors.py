"""Errors of a replay, for callers that want to catch them by type."""

from __future__ import annotations


class ReplayError(RuntimeError):
    """A replay that cannot give the gradient of its logical forward."""


class ReplayGuardError(ReplayError):
    """What the forward read was changed before its replay; the message names what moved."""


class UnpreservedStateError(ReplayError):
    """A replay wrote a buffer that nothing preserves, in strict mode."""


class ConcurrentReplayError(ReplayError):
    """Two threads used the same module while its state was redirected for a replay."""


class UnpreservedStateWarning(UserWarning):
    """State of a boundary was written that nothing preserved, or only from now on."""


class InactiveBoundaryWarning(UserWarning):
    """An enabled boundary does not checkpoint, since it is in eval mode."""
