"""Point entries of module dictionaries at stand-ins, and put the originals back.

The original tensors are never written, so they keep identity, value and version counter: a plain
autograd graph that was built earlier through the same module stays valid.

Every function appends what it replaces to a list of the caller *before* it replaces it, so that
`put_back` undoes exactly what was done, also when redirecting stops half-way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from wcn_ckpt.checkpointing.replay.kinds import Kind

Holder = dict[str, Any]
"""The `_buffers` or `_parameters` dictionary of a module."""

KeptHolder = tuple[Holder, dict[str, Kind]]
"""A holder, with the kinds of the entries that forwards write."""

Statistics = tuple[Tensor, Tensor, Tensor | None]
"""Running mean, running variance and counter of a norm layer."""

Original = tuple[Holder, Statistics]
"""The buffers of a norm layer, and the statistics that were in them."""


statistics_of = itemgetter("running_mean", "running_var", "num_batches_tracked")
"""Returns the statistics in the buffers of a norm layer."""


class NormScratch:
    """A norm layer with what its replays write instead of its running statistics.

    Args:
        norm: a layer that writes its running statistics in training and never reads them.
        shared: scratch by shape, dtype and device. Layers with statistics of one kind share it,
            since its values mean nothing: they are NaN, so that a read that nobody noticed shows.
            Only its counter never decreases, so that `momentum=None`, which divides by the
            incremented counter, is safe.
    """

    __slots__ = ("_shared", "buffers", "mean", "norm", "scratch")

    def __init__(self, norm: nn.Module, shared: dict[Any, Statistics]) -> None:
        self.norm = norm
        self.buffers: Holder = norm._buffers
        self._shared = shared
        self.mean: Tensor | None = None
        self.scratch: Statistics | None = None

    def follow(self, mean: Tensor | None) -> Statistics | None:
        """Return scratch for statistics that are not those of the last replay."""
        self.mean = mean
        self.scratch = None
        if mean is not None:
            key = mean.shape, mean.dtype, mean.device
            if key not in self._shared:
                count = self.buffers["num_batches_tracked"]
                self._shared[key] = (
                    torch.full_like(mean, torch.nan),
                    torch.full_like(mean, torch.nan),
                    None if count is None else torch.zeros_like(count),
                )
            self.scratch = self._shared[key]
        return self.scratch


def own_operations() -> AbstractContextManager[None]:
    """A context for our own tensor operations inside a replay.

    A dispatch mode of the user, such as that of selective checkpointing, must not see them.
    """
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def redirect_statistics(norms: Iterable[NormScratch], originals: list[Original]) -> None:
    """Let the norm layers that train write their running statistics into scratch tensors.

    Args:
        norms: the layers.
        originals: takes their statistics.
    """
    for entry in norms:
        if entry.norm.training:
            buffers = entry.buffers
            own = statistics_of(buffers)
            mean = own[0]
            scratch = entry.scratch if mean is entry.mean else entry.follow(mean)
            if scratch is not None:
                originals.append((buffers, own))
                buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"] = (
                    scratch
                )


def put_back(originals: Sequence[Original]) -> None:
    """Put the statistics back into their buffers, the latest first."""
    for buffers, own in reversed(originals):
        buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"] = own


def set_entries(holder: Holder, wanted: Mapping[str, Any]) -> None:
    """Make a dictionary hold exactly `wanted`, in its order, key by key.

    Never clears it: another thread that looks meanwhile finds every key that stays.
    """
    for name in holder.keys() - wanted.keys():
        del holder[name]
    holder.update(wanted)
    if list(holder) != list(wanted):
        for name in wanted:
            holder[name] = holder.pop(name)


def entry_values(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copy tensors so that each can stand in for its original; tied ones and views stay tied.

    Args:
        tensors: tensors of any shape, dtype and device; one object may occur several times.

    Returns:
        One detached copy for each tensor. Tensors that were one object, or views of one storage,
        are so again. A frozen parameter gives a parameter.
    """
    copies: dict[int, Tensor] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    result = []
    for tensor in tensors:
        if id(tensor) not in copies:
            copies[id(tensor)] = _copy(tensor, storages)
        result.append(copies[id(tensor)])
    return result


def _copy(tensor: Tensor, storages: dict[int, torch.UntypedStorage]) -> Tensor:
    detached = tensor.detach()
    if type(detached) is not Tensor or detached.layout is not torch.strided:
        copy = detached.clone()
    else:
        storage = detached.untyped_storage()
        shares_storage = storage.nbytes() != detached.numel() * detached.element_size()
        key = storage.data_ptr()
        if key != 0 and (shares_storage or key in storages):  # empty tensors all lie at 0
            copied = storages.get(key)
            if copied is None:
                copied = storages[key] = storage.clone()  # type: ignore[no-untyped-call]
            copy = torch.empty(0, dtype=detached.dtype, device=detached.device)
            copy.set_(copied, detached.storage_offset(), detached.size(), detached.stride())
        else:
            copy = detached.clone()
            if key != 0:
                storages[key] = copy.untyped_storage()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copy
