"""Values that a block saves for backward and then overwrites itself.

Autograd notices by version counter when it unpacks such a value. A replay hides it: torch hands out
the recomputed tensor without looking at its version.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from wcn_ckpt.checkpointing.errors import ReplayGuardError
from wcn_ckpt.checkpointing.replay.naming import name_of
from wcn_ckpt.checkpointing.replay.values import version


class RefuseOverwrites(AbstractContextManager[None]):
    """Watches what a replay saves, and whether the block overwrites it afterwards.

    It wraps the hooks with which torch collects recomputed tensors. Overwriting is a matter of the
    block's code, so a few replays are enough.

    Args:
        boundary: the module that is replayed.

    Raises:
        ReplayGuardError: on exit, where a saved value was overwritten.
    """

    def __init__(self, boundary: nn.Module) -> None:
        self._boundary = boundary
        self._saved: list[tuple[Tensor, int]] = []

    def __enter__(self) -> None:
        """Put our hooks on top of torch's."""
        pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)

        def noting_pack(tensor: Tensor) -> Any:
            self._saved.append((tensor.detach(), version(tensor)))
            return pack(tensor)

        torch._C._autograd._push_saved_tensors_default_hooks(noting_pack, unpack)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take our hooks off and compare versions."""
        torch._C._autograd._pop_saved_tensors_default_hooks()
        for tensor, before in self._saved:
            if version(tensor) != before:
                raise ReplayGuardError(
                    f"{name_of(self._boundary)} overwrites a tensor of shape "
                    f"{tuple(tensor.shape)} that its gradient needs, after it was saved; without "
                    "checkpointing, backward would fail with 'modified by an inplace operation'. "
                    "Write the new value to another tensor."
                ) from exc
