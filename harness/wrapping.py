"""What a program wraps the model in."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from matrix.programs import Program

# Torch 2.13 renamed the option and warns about the old name.
_BUFFER_OPTION = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


def wrap(module: nn.Module, program: Program) -> nn.Module:
    """Wrap a module as its program asks.

    Args:
        module: The subject.
        program: The training step.

    Returns:
        The module itself, or DDP around it.

    Raises:
        ValueError: If the program's wrapper is not known.
    """
    if program.wrapper == "none":
        return module
    if program.wrapper == "ddp":
        options: dict[str, Any] = {
            _BUFFER_OPTION: program.broadcast_buffers,
            "init_sync": program.init_sync,
            "find_unused_parameters": program.find_unused,
        }
        return DistributedDataParallel(module, **options)
    raise ValueError(f"no wrapper {program.wrapper!r}; valid wrappers: none, ddp")
