"""The obvious repair of torch's checkpoint: restore norm buffers by snapshot and ``copy_``.

It puts the values right and moves the buffers' autograd version counters, so a graph that was
built earlier through the same module can no longer run its backward.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from harness.arms.torch_checkpoint import replace_checkpoint


def install(module: nn.Module) -> Callable[[bool], None]:
    """Put torch's checkpoint, with norm buffers copied back, at every boundary.

    Args:
        module: The newly built subject.

    Returns:
        A switch for all its boundaries.

    Raises:
        ValueError: If the module has no boundary.
    """
    return replace_checkpoint(module, lambda boundary: (nullcontext(), _Restored(boundary)))


class _Restored(AbstractContextManager[None]):
    """Re-enterable: every backward pass over a retained graph enters it again."""

    def __init__(self, boundary: nn.Module) -> None:
        self._boundary = boundary
        self._entered: list[list[tuple[Tensor, Tensor]]] = []

    def __enter__(self) -> None:
        norms = [child for child in self._boundary.modules() if isinstance(child, _NormBase)]
        self._entered.append(
            [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
        )

    def __exit__(self, *exception: object) -> None:
        with torch.no_grad():
            for buffer, value in self._entered.pop():
                buffer.copy_(value)
