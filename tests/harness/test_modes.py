from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.modes import modes, modes_put_back

LEFT: list[tuple[Callable[[], Any], str, Any]] = [
    (torch.autocast_increment_nesting, "autocast nesting", 1),
    (lambda: torch.set_autocast_enabled("cpu", True), "autocast cpu", True),
    (lambda: torch.set_grad_enabled(False), "grad mode", False),
    (lambda: TorchDispatchMode().__enter__(), "dispatch modes", 1),
    (lambda: BaseTorchFunctionMode().__enter__(), "function modes", 1),
    (lambda: torch.set_default_dtype(torch.float64), "default dtype", "torch.float64"),
    (lambda: torch.use_deterministic_algorithms(True), "deterministic mode", 2),
]


@pytest.mark.parametrize(("leave", "name", "value"), LEFT, ids=[name for _, name, _ in LEFT])
def test_a_mode_that_is_left_behind_is_seen_and_put_back(
    leave: Callable[[], Any], name: str, value: Any
) -> None:
    clean = modes()
    with modes_put_back():
        leave()
        left = modes()

    assert left == clean | {name: value}
    assert modes() == clean


def test_modes_from_before_stay() -> None:
    with torch.no_grad(), torch.autocast("cpu"), BaseTorchFunctionMode():
        clean = modes()
        with modes_put_back():
            torch.autocast_increment_nesting()
            BaseTorchFunctionMode().__enter__()
        assert modes() == clean


def test_a_warning_about_nondeterministic_kernels_stays_a_warning() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with modes_put_back():
            torch.use_deterministic_algorithms(False)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_modes_are_put_back_where_a_run_raises() -> None:
    clean = modes()
    with pytest.raises(ValueError, match="a run"), modes_put_back():
        torch.set_grad_enabled(False)
        raise ValueError("a run")
    assert modes() == clean
