"""Reductions of the rows of each segment, for voxelization and pooling."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Reduction = Literal["mean", "max", "min", "sum", "mul", "var", "std", "random"]

STD_EPSILON = 1e-6


def check_reduction(reduction: str) -> None:
    """Check the name of a reduction.

    Raises:
        ValueError: there is no such reduction.
    """
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {get_args(Reduction)}, got {reduction!r}")


def segment_reduce(
    rows: Tensor,
    segments: Tensor,
    num_segments: int,
    reduction: Reduction,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Reduce the rows that belong to the same segment, channel by channel.

    `var` is the population variance, `std` is `sqrt(var + 1e-6)`. `max` and `min` send
    the whole gradient to the first row that attains the extremum. `random` copies one row of
    each segment, drawn uniformly. Half precision is accumulated in float32.

    Args:
        rows: (M, C) values.
        segments: (M,) int64 segment of each row, in any order.
        num_segments: number of segments S.
        reduction: what to do with the rows of a segment.
        generator: source of `random`'s draws; torch's own for the device of the rows by default.

    Returns:
        (S, C) in the dtype of `rows`; zeros for a segment without rows.

    Raises:
        TypeError: the variance of booleans is asked for.
        ValueError: there is no such reduction.
    """
    check_reduction(reduction)
    if rows.dtype == torch.bool and reduction in ("var", "std"):
        raise TypeError(f"booleans have no {reduction!r}; cast them first")
    if reduction in ("max", "min"):
        return _pick(rows, first_extremum(rows, segments, num_segments, reduction == "max"))
    if reduction == "random":
        chosen = random_member(segments, num_segments, generator)
        return _pick(rows, chosen.unsqueeze(1).expand(-1, rows.shape[1]))
    wide = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
    return _accumulate(wide, segments, num_segments, reduction).to(rows.dtype)


def first_extremum(
    rows: Tensor, segments: Tensor, num_segments: int, largest: bool = True
) -> Tensor:
    """Returns, per segment and channel, the first row that has the largest (smallest) value.

    A NaN wins over every number.

    Returns:
        (S, C) int64 row numbers; M, the number of rows, for a segment without rows.
    """
    with torch.no_grad():
        index = segments.unsqueeze(1).expand_as(rows)
        peaks = rows.new_zeros(num_segments, rows.shape[1]).scatter_reduce_(
            0, index, rows, "amax" if largest else "amin", include_self=False
        )
        wins = (rows == peaks.gather(0, index)) | rows.isnan()
        candidates = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        candidates = candidates.where(wins, len(rows))
        return candidates.new_full(peaks.shape, len(rows)).scatter_reduce_(
            0, index, candidates, "amin"
        )


def random_member(
    segments: Tensor, num_segments: int, generator: torch.Generator | None = None
) -> Tensor:
    """Draw one row of each segment uniformly.

    Returns:
        (S,) int64 row numbers; M, the number of rows, for a segment without rows.
    """
    draws = torch.rand(len(segments), 1, generator=generator, device=segments.device)
    return first_extremum(draws, segments, num_segments).squeeze(1)


def _pick(rows: Tensor, chosen: Tensor) -> Tensor:
    """Gather (S, C) row numbers from (M, C) rows; zeros where a number is M."""
    if len(rows) == 0:
        return rows.new_zeros(chosen.shape)
    found = chosen < len(rows)
    picked = rows.gather(0, chosen.clamp(max=len(rows) - 1))
    return picked.where(found, picked.new_zeros(()))


def _accumulate(rows: Tensor, segments: Tensor, num_segments: int, reduction: Reduction) -> Tensor:
    sums = rows.new_zeros(num_segments, rows.shape[1])
    if reduction == "sum":
        return sums.index_add(0, segments, rows)
    counts = segments.bincount(minlength=num_segments).unsqueeze(1)
    if reduction == "mul":
        index = segments.unsqueeze(1).expand_as(rows)
        products = torch.ones_like(sums).scatter_reduce(0, index, rows, "prod")
        return products.where(counts > 0, sums)
    means = sums.index_add(0, segments, rows) / counts.clamp(min=1)
    if reduction == "mean":
        return means
    deviations = rows - means.index_select(0, segments)
    variances = means.new_zeros(means.shape).index_add(0, segments, deviations.square())
    variances = variances / counts.clamp(min=1)
    if reduction == "var":
        return variances
    return (variances + STD_EPSILON).sqrt().where(counts > 0, sums)
