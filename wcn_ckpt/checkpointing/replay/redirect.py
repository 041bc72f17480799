"""Point entries of `_buffers` dictionaries at stand-ins, and put the originals back.

The original tensors are never written, so they keep identity, value and version counter: a plain
autograd graph that was built earlier through the same module stays valid.

Every function appends what it replaces to a list of the caller *before* it replaces it, so that
`put_back` undoes exactly what was done, also when redirecting stops half-way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Slot = tuple[dict[str, Any], str]
"""Where a tensor is held: the dictionary and its key."""

Original = tuple[dict[str, Any], str, Tensor | None]
"""A slot and what was in it."""


def redirect(slots: Iterable[Slot], stand_ins: Iterable[Tensor], originals: list[Original]) -> None:
    """Put one stand-in into each slot.

    Args:
        slots: the entries to redirect.
        stand_ins: as many tensors.
        originals: takes what was in the slots.
    """
    for (entries, name), stand_in in zip(slots, stand_ins, strict=True):
        originals.append((entries, name, entries[name]))
        entries[name] = stand_in


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
    """Put every original back into its slot, the latest first."""
    for entries, name, original in reversed(originals):
        entries[name] = original


def entry_values(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copy tensors so that each can stand in for its original; tied ones stay tied.

    Args:
        tensors: tensors of any shape, dtype and device; one object may occur several times.

    Returns:
        One detached copy for each tensor, the same object wherever the original was the same.
    """
    copies: dict[int, Tensor] = {}
    return [
        copies[id(tensor)]
        if id(tensor) in copies
        else copies.setdefault(id(tensor), tensor.detach().clone())
        for tensor in tensors
    ]
