"""Offsets: where each cloud of a batch begins and ends.

A batch of B clouds keeps its rows in one tensor, cloud after cloud. Cloud `b` owns the rows
`offsets[b]:offsets[b + 1]`; the offsets always live on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def as_offsets(offsets: Tensor | Sequence[int]) -> Tensor:
    """Return user-given offsets as a checked CPU tensor.

    Args:
        offsets: (B + 1,) integers on any device, `[0, ..., N]`, never decreasing.

    Raises:
        TypeError: they are not integers.
        ValueError: they are not one-dimensional, have fewer than two entries, do not start at 0
            or decrease.
    """
    try:
        table = torch.as_tensor(offsets, device="cpu").detach()
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"offsets must be integers, one per cloud and N, got {offsets!r}"
        ) from error
    if table.ndim != 1 or table.numel() < 2:
        raise ValueError(
            f"offsets must have shape (B + 1,) with B >= 1, got shape {tuple(table.shape)}; "
            "one cloud of N rows has offsets [0, N]"
        )
    if table.dtype in (torch.int8, torch.int16, torch.uint8):
        table = table.to(torch.int64)
    if table.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"offsets must be int32 or int64, got {table.dtype}; cast them first")
    entries = table.tolist()
    if entries[0] != 0:
        raise ValueError(f"offsets must start at 0, got {entries[0]} in {entries}")
    for cloud, (start, stop) in enumerate(zip(entries, entries[1:], strict=False)):
        if stop < start:
            raise ValueError(
                f"offsets must never decrease, but cloud {cloud} goes from {start} to {stop}: "
                f"{entries}"
            )
    return table


def offsets_from_counts(counts: Tensor | Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    """Return the (B + 1,) CPU offsets of clouds with `counts` rows each."""
    rows = torch.as_tensor(counts, dtype=torch.int64, device="cpu")
    return torch.cat([rows.new_zeros(1), rows.cumsum(0)]).to(dtype)


def batch_indices(offsets: Tensor, device: torch.device) -> Tensor:
    """Return the cloud that each row belongs to, as (N,) int64 on `device`."""
    counts = offsets.diff().to(torch.int64)
    clouds = torch.arange(counts.numel(), device=counts.device)
    return clouds.repeat_interleave(counts).to(device)


def same_offsets(left: Tensor, right: Tensor) -> bool:
    """Tell whether two offsets tables are equal, whatever their integer type."""
    return left is right or left.tolist() == right.tolist()
