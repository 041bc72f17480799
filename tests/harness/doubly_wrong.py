"""Blocks that are wrong in every arm alike, so that no comparison of the arms sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from harness.arms.checkpointed import install as install_checkpointed
from matrix.batches import terrain_rows
from matrix.blocks import MyBlock
from wcn_ckpt import is_replaying
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.modules import BasicBlock, SparseConv3d

Switch = Callable[[bool], None]


class CountsTwice(MyBlock):
    """Counts two updates of its running statistics for each that it makes."""

    def _forward(self, x: Tensor) -> Tensor:
        y = super()._forward(x)
        self.norm.num_batches_tracked += 1  # type: ignore[operator]
        return y


class UpdatesTwice(MyBlock):
    """Counts one update and makes two: the second one behind the norm's back."""

    def _forward(self, x: Tensor) -> Tensor:
        y = super()._forward(x)
        with torch.no_grad():
            rows, norm = self.linear(x), self.norm
            functional.batch_norm(rows, norm.running_mean, norm.running_var, training=True)
        return y


class ScalesUnderDdp(MyBlock):
    """Its gradients are too large by one part in ten thousand wherever DDP reduces them."""

    def __init__(self, channels: int, use_checkpoint: bool = False) -> None:
        super().__init__(channels, use_checkpoint)
        self.reduced = False
        self.linear.weight.register_hook(self._scaled)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        self.reduced = DistributedDataParallel._active_ddp_module is not None
        return super().forward(x)

    def _scaled(self, gradient: Tensor) -> Tensor:
        return gradient * 1.0001 if self.reduced else gradient


class LeavesABufferOut(MyBlock):
    """Keeps DDP from copying one of its buffers."""

    _ddp_params_and_buffers_to_ignore = ("norm.running_mean",)


class AddsAKey(MyBlock):
    """Registers a buffer when it first runs."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(1))
        return super().forward(x)


class ShiftedConv(SparseConv3d):
    """Takes the features of another voxel at each site."""

    def forward(self, x: Voxels, out_sparsity: Voxels | None = None) -> Voxels:
        return super().forward(x.replace_features(x.feature_tensor.roll(1, 0)), out_sparsity)


def shifted_block(**arguments: Any) -> nn.Module:
    """Return a sparse block one of whose convolutions looks at wrong neighbours."""
    block = BasicBlock(**arguments)
    first = next(module for module in block.modules() if isinstance(module, SparseConv3d))
    first.__class__ = ShiftedConv
    return block


def same_rows(*, seed: int, rank: int, microbatch: int, channels: int) -> Any:
    """Return the rows of rank 0 on every rank."""
    return terrain_rows(seed=seed, rank=0, microbatch=microbatch, channels=channels)


def computes_once_more(module: nn.Module) -> Switch:
    """Compute each boundary once more in a replay, without a trace."""

    def twice(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def computed(*args: Any, **kwargs: Any) -> Any:
                if is_replaying():
                    with torch.no_grad():
                        fn(*args, **kwargs)
                return fn(*args, **kwargs)

            return call(computed, *args, **kwargs)

        return called

    switch = install_checkpointed(module)
    for child in module.modules():
        if hasattr(child, "_gradient_checkpointed_call"):
            object.__setattr__(
                child, "_gradient_checkpointed_call", twice(child._gradient_checkpointed_call)
            )
    return switch
