"""Watches the norms of a module: which ones a logical forward calls, on what batch statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from harness.computations import in_backward
from wcn_ckpt.nn.modules import SyncBatchNorm


class NormCall(NamedTuple):
    """One call of a norm that updates its running statistics; tensors are float64 (C,)."""

    name: str
    """Path of the norm."""
    momentum: float | None
    """Weight of this batch; None for the cumulative average."""
    terms: int
    """How many values each statistic is computed from."""
    mean: Tensor
    """Mean of the batch."""
    var: Tensor
    """Unbiased variance of the batch."""
    mean_abs: Tensor
    """Mean of the magnitudes."""
    mean_square: Tensor
    """Mean of the squares."""


class NormWatch:
    """Records the norm calls of each logical forward of a module.

    Args:
        module: The module; its norms get a hook each.
    """

    def __init__(self, module: nn.Module) -> None:
        self.forwards: list[list[NormCall]] = []
        """For each forward: the calls, in order."""
        self._watching = False
        for name, norm in module.named_modules():
            if isinstance(norm, (_BatchNorm, _InstanceNorm)):
                norm.register_forward_pre_hook(self._hook(name), with_kwargs=True)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Record what is called inside as the next forward."""
        self.forwards.append([])
        self._watching = True
        try:
            yield
        finally:
            self._watching = False

    def _hook(self, name: str) -> Any:
        def hook(norm: _NormBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            updates = norm.training and norm.running_mean is not None
            if self._watching and updates and not in_backward():
                value = args[0] if args else kwargs["input"]
                with torch.no_grad():
                    self.forwards[-1].append(_measured(name, norm, value))

        return hook


def watch_norms_in_backward(module: nn.Module) -> set[str]:
    """Note, from now on, which norms update their running statistics in a backward pass.

    For an arm without checkpointing: there that is no replay, but a hook of the model's own.

    Args:
        module: The module; its norms get a hook each.

    Returns:
        Their paths, as they come.
    """
    found: set[str] = set()

    def watch(name: str, norm: nn.Module) -> None:
        def note(*_: Any) -> None:
            if norm.training and in_backward():
                found.add(name)

        norm.register_forward_pre_hook(note)

    for name, norm in module.named_modules():
        if isinstance(norm, (_BatchNorm, _InstanceNorm)):
            watch(name, norm)
    return found


def _measured(name: str, norm: _NormBase, value: Tensor) -> NormCall:
    wide = value.detach().double()
    if isinstance(norm, _InstanceNorm):
        if wide.dim() == norm._get_no_batch_dim():  # type: ignore[no-untyped-call]
            wide = wide.unsqueeze(0)
        # Running statistics are the mean over instances of the statistics of each.
        wide = wide.flatten(2).transpose(0, 1)
        var = wide.var(2).mean(1)
        terms = wide.shape[2]
    else:
        wide = wide.transpose(0, 1)
        var = wide.flatten(1).var(1)
        terms = wide[0].numel()
    flat = wide.flatten(1)
    if isinstance(norm, (SyncBatchNorm, nn.SyncBatchNorm)) and dist.is_initialized():
        return _over_all_ranks(name, norm, flat)
    statistics = (flat.mean(1), var, flat.abs().mean(1), flat.square().mean(1))
    return NormCall(name, norm.momentum, terms, *(part.cpu() for part in statistics))


def _over_all_ranks(name: str, norm: _NormBase, flat: Tensor) -> NormCall:
    """Sum over ranks: first for the mean, then for the deviations from it."""
    sums = torch.stack([torch.ones_like(flat), flat, flat.abs(), flat.square()]).sum(2)
    dist.all_reduce(sums)
    count, total, total_abs, total_square = sums
    mean = total / count
    squares = (flat - mean.unsqueeze(1)).square().sum(1)
    dist.all_reduce(squares)
    statistics = (mean, squares / (count - 1), total_abs / count, total_square / count)
    return NormCall(name, norm.momentum, int(count[0]), *(part.cpu() for part in statistics))
