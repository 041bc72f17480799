"""The modes and settings of a thread that a step must leave as it found them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode
from torch.utils import _python_dispatch

_DEVICES = ("cpu", "cuda")


def modes() -> dict[str, Any]:
    """Return the modes and settings as they are now, by name."""
    return {
        "autocast nesting": _autocast_nesting(),
        **{f"autocast {device}": torch.is_autocast_enabled(device) for device in _DEVICES},
        "grad mode": torch.is_grad_enabled(),
        "dispatch modes": len(_python_dispatch._get_current_dispatch_mode_stack()),
        "function modes": _function_modes(),
        "default dtype": str(torch.get_default_dtype()),
        "deterministic mode": torch.get_deterministic_debug_mode(),
    }


@contextmanager
def modes_put_back() -> Iterator[None]:
    """Put back what is left behind inside, so that the next run starts without it."""
    before, dtype = modes(), torch.get_default_dtype()
    try:
        yield
    finally:
        _put_back(before)
        torch.set_default_dtype(dtype)


def _put_back(before: dict[str, Any]) -> None:
    while len(_python_dispatch._get_current_dispatch_mode_stack()) > before["dispatch modes"]:
        _python_dispatch._pop_mode()
    while _function_modes() > before["function modes"]:
        _pop_mode()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    for _ in range(_autocast_nesting() - before["autocast nesting"]):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    for device in _DEVICES:
        torch.set_autocast_enabled(device, before[f"autocast {device}"])
    torch.set_grad_enabled(before["grad mode"])
    if torch.get_deterministic_debug_mode() != before["deterministic mode"]:
        torch.set_deterministic_debug_mode(before["deterministic mode"])


def _function_modes() -> int:
    return len(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]  # the same


def _autocast_nesting() -> int:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting
