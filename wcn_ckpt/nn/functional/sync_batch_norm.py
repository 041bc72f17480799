"""Batch normalization with statistics over the rows of every rank of a process group.

Ioffe and Szegedy, "Batch Normalization", ICML 2015, on the batch that all ranks hold together.
Moments of parts are combined as in Chan, Golub and LeVeque, "Algorithms for Computing the Sample
Variance", The American Statistician 37, 1983.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class BatchMoments(NamedTuple):
    """Moments of the rows of all ranks; float64 tensors."""

    total: Tensor
    """Number of values that each channel has on all ranks together; a scalar."""
    mean: Tensor
    """(C,)"""
    var: Tensor
    """(C,), biased: the sum of squared deviations over `total`."""


@torch.no_grad()
def batch_moments(x: Tensor, group: dist.ProcessGroup | None = None) -> BatchMoments:
    """Compute mean and variance of each channel over all ranks, in one all-reduce.

    Ranks may hold different numbers of rows, or none. Every rank of the group has to call it.

    Args:
        x: (N, C, ...), floating point.
        group: the ranks; the default group where None.

    Returns:
        The same moments, bit by bit, on every rank.

    Raises:
        ValueError: all ranks together have fewer than two values for a channel.
    """
    channels = x.shape[1]
    count = x.numel() // channels if channels else 0
    # Each rank fills its row, so that the sum over ranks is a copy of all rows.
    table = x.new_zeros(dist.get_world_size(group), 1 + 2 * channels, dtype=torch.float64)
    if count:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        var, mean = torch.var_mean(wide, _all_but_channels(x), correction=0)
        own = table[dist.get_rank(group)]
        own[0] = count
        own[1:] = torch.cat([mean, var * count])
    dist.all_reduce(table, group=group)
    counts = table[:, :1]
    means, squares = table[:, 1:].chunk(2, dim=1)
    total = counts.sum()
    # A rank that has two rows knows that there are enough, without waiting for an accelerator.
    if count < 2 and total.item() < 2:
        raise ValueError(
            f"batch normalization in training needs more than one value for each channel, and all "
            f"{len(table)} ranks together have {int(total.item())}; this one has an input of shape "
            f"{tuple(x.shape)}"
        )
    mean = (counts * means).sum(0) / total
    squared_deviations = (squares + counts * (means - mean).square()).sum(0)
    return BatchMoments(total, mean, squared_deviations / total)


def sync_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    moments: BatchMoments,
    eps: float = 1e-5,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Normalize with the moments of all ranks; gradients flow through the moments.

    The gradient of the input is that of the sum of every rank's loss, as if one process had
    normalized all rows: backward has an all-reduce of two sums for each channel. Those of `weight`
    and `bias` are this rank's share, which DistributedDataParallel averages like any other.

    Args:
        x: (N, C, ...), floating point.
        weight: (C,) or None.
        bias: (C,) or None.
        moments: what `batch_moments` gave for `x`.
        eps: added to the variance.
        group: the ranks that `moments` are of.

    Returns:
        (N, C, ...) in the dtype of `x`.

    Raises:
        RuntimeError: in backward, a second derivative is asked for.
    """
    # Torch declares its type since release 2.14.
    out: Tensor = _SyncBatchNorm.apply(  # type: ignore[no-untyped-call,unused-ignore]
        x, weight, bias, *moments, eps, group
    )
    return out


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        count: Tensor,
        mean: Tensor,
        var: Tensor,
        eps: float,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        mean, var = mean.to(wide), var.to(wide)
        ctx.save_for_backward(x, weight, count, mean, (var + eps).rsqrt())
        ctx.group = group
        if weight is not None:
            weight = weight.to(wide)
        if bias is not None:
            bias = bias.to(wide)
        return functional.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, count, mean, scale = ctx.saved_tensors
        dims = _all_but_channels(x)
        shape = (1, -1, *(1,) * (x.dim() - 2))
        gradient = gradient.to(mean.dtype)
        unit = (x.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        sums = torch.stack([gradient.sum(dims), (gradient * unit).sum(dims)])
        of_bias, of_weight = sums
        of_x = None
        if ctx.needs_input_grad[0]:
            total = sums.to(torch.float64, copy=True)
            dist.all_reduce(total, group=ctx.group)
            shift, slope = (total / count).to(mean.dtype)
            if weight is not None:
                scale = scale * weight.to(mean.dtype)
            centred = gradient - shift.view(shape) - unit * slope.view(shape)
            of_x = (centred * scale.view(shape)).to(x.dtype)
        wanted = ctx.needs_input_grad[1:3]
        shares = [
            of.to(mean.dtype if weight is None else weight.dtype) if want else None
            for of, want in zip((of_weight, of_bias), wanted, strict=True)
        ]
        return (of_x, *shares, None, None, None, None, None)


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]
