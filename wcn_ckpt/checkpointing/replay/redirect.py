"""Point entries of module dictionaries at stand-ins, and put the originals back.

The original tensors are never written, so they keep identity, value and version counter: a plain
autograd graph that was built earlier through the same module stays valid.

Every function appends what it replaces to a list of the caller *before* it replaces it, so that
`put_back` undoes exactly what was done, also when redirecting stops half-way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Holder = dict[str, Any]
"""The `_buffers` or `_parameters` dictionary of a module."""

Original = tuple[Holder, str, Tensor | None]
"""A holder, a key, and what was there."""

Scratch = dict[Any, tuple[Tensor, Tensor, Tensor | None]]
"""Running mean, variance and counter to write instead, by shape, dtype and device of the mean."""


def redirect_statistics(
    norms: Iterable[nn.Module], scratch: Scratch, originals: list[Original]
) -> None:
    """Let the norm layers that train write their running statistics into scratch tensors.

    Layers with statistics of one shape share the scratch, since its values mean nothing. Only its
    counter never decreases, so that `momentum=None`, which divides by the incremented counter, is
    safe.

    Args:
        norms: layers that write their running statistics in training and never read them.
        scratch: tensors of earlier replays; takes those that are missing.
        originals: takes the statistics.
    """
    for norm in norms:
        buffers = norm._buffers
        mean = buffers["running_mean"]
        if mean is None or not norm.training:
            continue
        count = buffers["num_batches_tracked"]
        key = mean.shape, mean.dtype, mean.device
        stand_ins = scratch.get(key)
        if stand_ins is None:
            stand_ins = scratch[key] = (
                torch.empty_like(mean),
                torch.empty_like(mean),
                None if count is None else torch.zeros_like(count),
            )
        originals += (
            (buffers, "running_mean", mean),
            (buffers, "running_var", buffers["running_var"]),
            (buffers, "num_batches_tracked", count),
        )
        buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"] = stand_ins


def put_back(originals: Sequence[Original]) -> None:
    """Put every original back into its place, the latest first."""
    for holder, name, original in reversed(originals):
        holder[name] = original


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
        if shares_storage or key in storages:
            copied = storages.get(key)
            if copied is None:
                copied = storages[key] = storage.clone()  # type: ignore[no-untyped-call]
            copy = torch.empty(0, dtype=detached.dtype, device=detached.device)
            copy.set_(copied, detached.storage_offset(), detached.size(), detached.stride())
        else:
            copy = detached.clone()
            storages[key] = copy.untyped_storage()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copy, requires_grad=tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else copy
