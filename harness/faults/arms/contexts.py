"""What the broken arms are made of: contexts of forwards and replays, and kept buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Switch = Callable[[bool], None]
"""What an arm's install function returns."""


class Each(AbstractContextManager[None]):
    """A context that is made anew whenever it is entered, as a retained graph enters it again.

    Args:
        make: Returns the context.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._entered: list[AbstractContextManager[Any]] = []

    def __enter__(self) -> None:
        """Make the context and enter it."""
        context = self._make()
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *raised: Any) -> bool | None:
        """Leave the context that was entered last."""
        return self._entered.pop().__exit__(*raised)


class Kept(NamedTuple):
    """A buffer of a boundary and a copy of its value."""

    owner: nn.Module
    """The module that holds it."""
    name: str
    """Its name there."""
    buffer: Tensor
    """The buffer itself."""
    value: Tensor
    """The copy."""

    def bind(self, tensor: Tensor) -> None:
        """Let the module hold another tensor in its place."""
        self.owner._buffers[self.name] = tensor


def keep(modules: Iterable[nn.Module]) -> list[Kept]:
    """Copy the buffers that modules hold themselves."""
    return [
        Kept(module, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def norms(boundary: nn.Module) -> list[_NormBase]:
    """Return the norms below a boundary."""
    return [child for child in boundary.modules() if isinstance(child, _NormBase)]


def write_back(kept: Iterable[Kept]) -> None:
    """Write the copies into the buffers; no graph notices."""
    for item in kept:
        item.buffer.data.copy_(item.value)


@contextmanager
def bound(kept: Iterable[Kept]) -> Iterator[None]:
    """Let the modules hold fresh copies of what was kept, and put the buffers back at the end."""
    kept = list(kept)
    before = [(item, item.owner._buffers[item.name]) for item in kept]
    for item in kept:
        item.bind(item.value.clone())
    try:
        yield
    finally:
        for item, buffer in before:
            item.owner._buffers[item.name] = buffer
