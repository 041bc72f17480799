"""Values that a block saves for backward and then overwrites itself.

Autograd notices by version counter when it unpacks such a value, and does not mind where no
gradient needs it. A replay hides it: torch hands out the recomputed tensor without looking at its
version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Size, Tensor, nn

from wcn_ckpt.checkpointing.errors import ReplayGuardError
from wcn_ckpt.checkpointing.replay.naming import name_of
from wcn_ckpt.checkpointing.replay.values import version

_Hook = Callable[[Any], Any]

_INTERNAL, _USERS = "_checkpoint_internal", "_user_hooks"


class SavedValues:
    """What one logical forward saves for backward, numbered, and what its replays overwrite of it.

    It wraps the hooks with which torch's checkpoint keeps track of both. Overwriting is a matter of
    the block's code, so a few forwards are enough.

    Args:
        boundary: the module that is run.
    """

    def __init__(self, boundary: nn.Module) -> None:
        self._name = name_of(boundary)
        self._overwritten: dict[int, Size] = {}

    @contextmanager
    def of_forward(self) -> Iterator[None]:
        """Number what the forward inside saves; unpacking what was overwritten will be refused."""
        pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)
        count = 0

        def numbering_pack(tensor: Tensor) -> tuple[int, Any]:
            nonlocal count
            count += 1
            return count - 1, pack(tensor)

        def refusing_unpack(packed: tuple[int, Any]) -> Any:
            index, held = packed
            value = unpack(held)
            if index in self._overwritten:
                raise ReplayGuardError(
                    f"{self._name} overwrites a tensor of shape {tuple(self._overwritten[index])} "
                    "that its gradient needs, after it was saved; without checkpointing, backward "
                    "would fail with 'modified by an inplace operation'. Write the new value to "
                    "another tensor."
                )
            return value

        with _hooks(numbering_pack, refusing_unpack, around=pack):
            yield

    @contextmanager
    def of_replay(self) -> Iterator[None]:
        """Note what the replay inside overwrites of what it has saved."""
        pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)
        saved: list[tuple[Tensor, int]] = []

        def noting_pack(tensor: Tensor) -> Any:
            saved.append((tensor.detach(), version(tensor)))
            return pack(tensor)

        try:
            with _hooks(noting_pack, unpack, around=pack):
                yield
        finally:
            for index, (tensor, before) in enumerate(saved):
                if version(tensor) != before:
                    self._overwritten[index] = tensor.shape


@contextmanager
def _hooks(pack: _Hook, unpack: _Hook, *, around: Any) -> Iterator[None]:
    """Push hooks that wrap those of torch's checkpoint, around whose `pack` ours is.

    Since release 2.14 torch looks past its own hooks for those of the user, by two attributes. The
    second holds on to what is the user's, so it goes when the hooks do.
    """
    internal = getattr(around, _INTERNAL, False)
    if internal:
        setattr(pack, _INTERNAL, True)
        setattr(pack, _USERS, getattr(around, _USERS))
    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    try:
        yield
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        if internal:
            delattr(pack, _USERS)
