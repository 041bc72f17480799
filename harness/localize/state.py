"""The state of modules at one instant: parameters, buffers and plain Python attributes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from harness.localize.values import (
    Held,
    Leaf,
    first_difference,
    hold_unseen,
    leaves_of,
    same,
    unseen,
    vars_of,
)
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_CONTAINERS = (list, dict, set, deque)


class Place(NamedTuple):
    """Where a piece of state is."""

    kind: str
    """``parameter``, ``buffer`` or ``attribute``."""
    module: str
    """Path of the module that holds it."""
    name: str
    """Its name there."""

    @property
    def path(self) -> str:
        """The path from the subject."""
        return f"{self.module}.{self.name}" if self.module else self.name


State = dict[Place, Leaf]
"""Everything that some modules held."""

Modules = Iterable[tuple[str, nn.Module]]


class Change(NamedTuple):
    """A piece of state that is not what it was."""

    place: Place
    before: Leaf
    after: Leaf

    @property
    def rebound(self) -> bool:
        """Whether another tensor has taken the place of a parameter or buffer."""
        return (
            self.place.kind != "attribute"
            and isinstance(self.before, Held)
            and isinstance(self.after, Held)
            and not self.before.is_same_object(self.after)
        )


def state_of(modules: Modules) -> State:
    """Copy the state that some modules hold themselves, without that of their children.

    Args:
        modules: Path and module.
    """
    state: State = {}
    for path, module in modules:
        with unseen():
            for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
                for name, tensor in tensors.items():
                    if tensor is not None and not is_lazy(tensor):
                        state[Place(kind, path, name)] = hold_unseen(tensor)
        for name, leaf in plain_attributes(module).items():
            state[Place("attribute", path, name)] = leaf
    return state


def plain_attributes(module: nn.Module) -> dict[str, Leaf]:
    """Copy the numbers, texts, tensors and containers that a module keeps as plain attributes.

    Containers that its class keeps are among them. What every module has, and what the boundaries
    of wcn_ckpt keep for themselves, is left out.
    """
    found: dict[str, Leaf] = {}
    for name, value in _attributes(module):
        found.update(leaves_of(value, name))
    return found


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    own = vars_of(module)
    for name, value in list(own.items()):
        if name not in _OF_EVERY_MODULE and not hasattr(GradientCheckpointingMixin, name):
            yield name, value
    for kind in type(module).__mro__:
        if kind is nn.Module or kind.__module__.startswith(("torch.", "wcn_ckpt.checkpointing")):
            continue
        for name, value in list(vars(kind).items()):
            if isinstance(value, _CONTAINERS) and not name.startswith("__") and name not in own:
                yield name, value


def changes(before: State, after: State) -> list[Change]:
    """Return what differs between two instants, in value or, for tensors, in identity."""
    found = []
    for place in {**before, **after}:
        change = Change(place, before.get(place), after.get(place))
        missing = place not in before or place not in after
        if missing or change.rebound or not same(change.before, change.after):
            found.append(change)
    return found


def value_changes(before: State, after: State) -> list[Change]:
    """Return what differs between two instants, or two runs, in value alone."""
    return [
        change
        for change in changes(before, after)
        if first_difference({"": change.before}, {"": change.after}) is not None
        or (change.place in before) != (change.place in after)
    ]


def written_not_read(modules: Modules) -> frozenset[Place]:
    """Return the running statistics that norms in training write and do not read."""
    return frozenset(
        Place("buffer", path, name)
        for path, module in modules
        if isinstance(module, _NormBase) and module.training
        for name in module._buffers
    )
