"""A context manager that leaves named buffers of a module as it found them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType

from torch import Tensor, nn

from wcn_ckpt.checkpointing.replay.redirect import Holder, entry_values


class _PreservedBuffers(AbstractContextManager[None]):
    def __init__(
        self,
        module: nn.Module,
        names: frozenset[str],
        types: type[nn.Module] | tuple[type[nn.Module], ...],
    ) -> None:
        self._module = module
        self._names = names
        self._types = types
        self._entered: list[list[tuple[Holder, str, Tensor]]] = []

    def _slots(self) -> list[tuple[Holder, str]]:
        return [
            (holder, name)
            for module in self._module.modules()
            if isinstance(module, self._types)
            for holder in (module._buffers, vars(module))
            for name in self._names
            if isinstance(holder.get(name), Tensor)
        ]

    def __enter__(self) -> None:
        slots = self._slots()
        copies = entry_values(holder[name] for holder, name in slots)
        originals: list[tuple[Holder, str, Tensor]] = []
        for (holder, name), copy in zip(slots, copies, strict=True):
            originals.append((holder, name, holder[name]))
            holder[name] = copy
        self._entered.append(originals)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for holder, name, original in reversed(self._entered.pop()):
            holder[name] = original


def preserve_module_buffers(
    module: nn.Module,
    names: str | Iterable[str],
    types: type[nn.Module] | tuple[type[nn.Module], ...] | None = None,
) -> AbstractContextManager[None]:
    """Leave named buffers of a module and all its descendants as they were on entry.

    While the context is entered, the module works on copies that start with the values on entry.
    On exit, also by an exception, the original tensor objects are put back: identity, value and
    autograd version are those of the entry. An *alias* of a buffer held elsewhere (a list, another
    module, a variable) is the original, so it sees none of the writes made inside.

    A boundary keeps its norm layers by itself; this is for state of another kind, for instance in
    the recompute context of `_get_gradient_checkpointing_context_fn`.

    Args:
        module: root of the tree.
        names: attribute names of the tensors, for example `("running_mean", "running_var")`.
            Modules that lack one, or hold None there, are skipped.
        types: only modules of these types are considered; all of them by default.

    Returns:
        A context manager that can be entered again, also while it is entered.

    Raises:
        TypeError: `module` is not an `nn.Module`, a name is not a string, or `types` are not
            classes.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"preserve_module_buffers needs an nn.Module, got {module!r} of type "
            f"{type(module).__name__}."
        )
    name_set = frozenset([names] if isinstance(names, str) else names)
    not_strings = [name for name in name_set if not isinstance(name, str)]
    if not_strings:
        raise TypeError(f"Buffer names must be strings, got {not_strings[0]!r}.")
    wanted = nn.Module if types is None else types
    for cls in wanted if isinstance(wanted, tuple) else (wanted,):
        if not isinstance(cls, type):
            raise TypeError(f"types must be a class or a tuple of classes, got {cls!r}.")
    return _PreservedBuffers(module, name_set, wanted)
