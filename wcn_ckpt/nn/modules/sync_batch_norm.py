"""BatchNorm over the rows of every rank, on any device."""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from wcn_ckpt.checkpointing.replay.known import written_not_read
from wcn_ckpt.checkpointing.replay.recollection import OncePerForward
from wcn_ckpt.nn.functional.sync_batch_norm import BatchMoments, batch_moments, sync_batch_norm


@written_not_read
class SyncBatchNorm(_BatchNorm, OncePerForward):
    """Batch normalization with the statistics of all ranks; not torch's own class of that name.

    It computes what `torch.nn.BatchNorm1d` would on the batches of all ranks put together, with as
    many rows on each rank as it likes, on the CPU too, where torch's refuses to run. Without a
    process group, on one rank, and in eval mode it *is* BatchNorm, and calls no collective. Running
    statistics in float32 go with parameters in bfloat16, as FSDP2's mixed precision has it.

    A training forward calls one all-reduce and its backward another, so every rank of the group has
    to run the layer equally often. Below a gradient-checkpointing boundary a replay takes over the
    statistics of its forward and calls none: ranks may differ in which blocks they checkpoint.
    Two things still repeat an all-reduce, which then every rank has to do: another checkpoint than
    a boundary's, and a block that takes a gradient in its own forward.

    The state dict is that of BatchNorm.

    Args:
        num_features: channels C.
        eps: added to the variance.
        momentum: weight of a new batch in the running statistics; None for a plain average.
        affine: whether to scale and shift.
        track_running_stats: whether to keep running statistics.
        process_group: the ranks; the default group of `torch.distributed` where None.
        device: of parameters and buffers.
        dtype: of parameters and running statistics.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """See the class."""
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.process_group = process_group

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each channel.

        Args:
            input: (N, C, ...), floating point.

        Returns:
            The same shape and dtype.

        Raises:
            ValueError: the input has no dimension of channels or another number of them, or all
                ranks together have one value for a channel.
            TypeError: the input is not floating point.
        """
        self._check_input(input)
        if not self._synchronizes():
            return self._alone(input)
        over_all_ranks = self._over_all_ranks
        if torch.compiler.is_compiling():
            over_all_ranks = torch.compiler.disable(over_all_ranks)  # type: ignore[no-untyped-call]
        return over_all_ranks(input)

    def _alone(self, input: Tensor) -> Tensor:
        """Normalize as BatchNorm does, which however refuses parameters of another dtype."""
        momentum = self._count() if self.training and self.track_running_stats else 0.0
        keeps = self.track_running_stats or not self.training
        mean, var = (self.running_mean, self.running_var) if keeps else (None, None)
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.affine and mean is not None:
            weight, bias = weight.to(mean.dtype), bias.to(mean.dtype)
        training = self.training or mean is None
        return functional.batch_norm(input, mean, var, weight, bias, training, momentum, self.eps)

    def _over_all_ranks(self, input: Tensor) -> Tensor:
        group = self.process_group
        moments = self._once_per_forward(lambda: batch_moments(input.detach(), group))
        self._update(moments)
        return sync_batch_norm(input, self.weight, self.bias, moments, self.eps, group)

    @torch.no_grad()
    def _update(self, moments: BatchMoments) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        momentum = self._count()
        unbiased = moments.var * (moments.total / (moments.total - 1))
        for running, batch in ((self.running_mean, moments.mean), (self.running_var, unbiased)):
            running.mul_(1 - momentum).add_(momentum * batch.to(running.dtype))

    def _count(self) -> float:
        """Count an update, and return the weight of its batch in the running statistics."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum

    def _synchronizes(self) -> bool:
        return (
            self.training
            and dist.is_available()
            and dist.is_initialized()
            and dist.get_world_size(self.process_group) > 1
        )

    def _check_input(self, input: Tensor) -> None:
        if not input.is_floating_point():
            raise TypeError(
                f"SyncBatchNorm takes floating point values, got {input.dtype}; cast them first"
            )
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm with {self.num_features} channels takes an input of shape "
                f"(N, {self.num_features}, ...), got {tuple(input.shape)}"
            )

    def _check_input_dim(self, input: Tensor) -> None:
        self._check_input(input)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_group: dist.ProcessGroup | None = None
    ) -> nn.Module:
        """Put this layer in place of every BatchNorm layer of a tree of modules.

        Call it before the model is wrapped and before an optimizer is made. Parameters and buffers
        are the same tensors, so the state dict stays as it is. A subclass with a forward of its own
        is left alone, since it computes something else.

        Args:
            module: root of the tree, changed in place.
            process_group: the ranks; the default group where None.

        Returns:
            The root, or what replaces it where it is a BatchNorm layer itself.

        Raises:
            ValueError: a lazy layer has not seen an input yet.
        """
        replacements: dict[nn.Module, nn.Module] = {}
        for parent in list(module.modules()):
            for name, child in parent._modules.items():
                if child is not None and _is_plain_batch_norm(child):
                    if child not in replacements:
                        replacements[child] = cls._like(child, process_group)
                    parent._modules[name] = replacements[child]
        return cls._like(module, process_group) if _is_plain_batch_norm(module) else module

    @classmethod
    def _like(cls, norm: _BatchNorm, process_group: dist.ProcessGroup | None) -> SyncBatchNorm:
        if any(map(is_lazy, (*norm.parameters(), *norm.buffers()))):
            raise ValueError(
                f"{norm!r} has not seen an input, so its number of channels is not known: run a "
                "forward pass before you convert it"
            )
        made = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            norm.affine,
            norm.track_running_stats,
            process_group,
            device="meta",
        )
        made._parameters.update(norm._parameters)
        made._buffers.update(norm._buffers)
        return made.train(norm.training)


def _is_plain_batch_norm(module: nn.Module) -> TypeGuard[_BatchNorm]:
    return (
        isinstance(module, _BatchNorm)
        and not isinstance(module, SyncBatchNorm)
        and type(module).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    )
