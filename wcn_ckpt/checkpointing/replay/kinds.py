"""What is known about the tensors that modules hold, shared by all boundaries of a process."""

from __future__ import annotations

import enum
import weakref

from torch import nn


class Kind(enum.Enum):
    """How the forward of a module treats one of its buffers or frozen parameters."""

    CLEAN = "never seen to be written"
    WRITTEN = "written, and the output never depends on it"
    IN_PLACE = "written in place, perhaps read"
    REBOUND = "replaced by another tensor, registered or deleted"


class _KindTable:
    """Kinds by module and name. Boundaries that share a module share what was learned of it."""

    def __init__(self) -> None:
        self.generation = 0
        self._kinds: weakref.WeakKeyDictionary[nn.Module, dict[str, Kind]] = (
            weakref.WeakKeyDictionary()
        )

    def of(self, module: nn.Module) -> dict[str, Kind]:
        """Kinds of the named tensors of a module; a name not in it was never watched."""
        return self._kinds.get(module, {})

    def learn(self, module: nn.Module, name: str, kind: Kind) -> None:
        """Record a kind; plans made before a tensor turned out to be written are outdated."""
        kinds = self._kinds.setdefault(module, {})
        known = kinds.get(name)
        if known is kind or (kind is Kind.CLEAN and known is not None):
            return
        kinds[name] = kind
        if kind is not Kind.CLEAN:
            self.generation += 1


kind_table = _KindTable()
