"""The modules that a function computes with: what a checkpoint call of other code recomputes."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from wcn_ckpt.checkpointing.replay.options import ReplayOptions


class Region(nn.Module):
    """Modules that are recomputed together, as one boundary.

    It is never called; what a boundary remembers is kept in it and not in the model. It counts as
    training, whatever the modules do: they are replayed in the modes of their forward.

    Args:
        modules: the modules, by their dotted path in the model.
        options: the switches.
    """

    _reads_and_writes_state = False
    _state_was_watched = False

    def __init__(self, modules: dict[str, nn.Module], options: ReplayOptions) -> None:
        super().__init__()
        self._modules.update(modules)
        self._replay_options = options

    def _get_name(self) -> str:
        """The class of the first module, and how many more there are."""
        first, *more = self._modules.values()
        return type(first).__name__ + (f" and {len(more)} more" if more else "")


def modules_of(function: Any, args: tuple[Any, ...]) -> list[nn.Module]:
    """Find the modules that a call can compute with.

    Args:
        function: a module, a bound method, a partial or a function; the variables that it closes
            over and its defaults are looked at, and the containers in them.
        args: the values of its arguments.

    Returns:
        Every module found, in the order found.
    """
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()
    waiting = [*reversed(args), function]
    while waiting:
        value = waiting.pop()
        if isinstance(value, nn.Module):
            found[id(value)] = value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting += _parts(value)
    return list(found.values())


def _parts(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return [*value.keywords.values(), *reversed(value.args), value.func]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.FunctionType):
        return _variables(value)
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    return []


_EMPTY = types.CellType()


def _variables(function: types.FunctionType) -> list[Any]:
    """What a function closes over, and its defaults.

    `torch.utils.checkpoint.checkpoint_sequential`, and `checkpoint_seq` of timm after it, make
    functions that close over *all* functions of a sequence and run those from `start` to `end`.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: cell.cell_contents for name, cell in cells if cell != _EMPTY}
    start, end, functions = closed.get("start"), closed.get("end"), closed.get("functions")
    if isinstance(start, int) and isinstance(end, int) and functions is not None:
        closed["functions"] = [functions[index] for index in range(start, end + 1)]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return defaults + list(reversed(closed.values()))


def calling_modules() -> Iterator[nn.Module]:
    """The modules whose methods are running in this thread, the innermost first."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            yield module
