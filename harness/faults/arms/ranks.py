"""Ranks that reduce what they should not, or do not do what the others do."""

from __future__ import annotations

import os

import torch.distributed as dist
from torch import Tensor, nn

from harness.arms.checkpointed import install as install_checkpointed
from harness.arms.torch_checkpoint import install as install_torch_checkpoint
from harness.faults.arms.contexts import Switch
from wcn_ckpt.nn.modules import configure_gradient_checkpointing


def reduced_under_no_sync(module: nn.Module) -> Switch:
    """Average every gradient over the ranks as soon as it is there."""

    def averaged(gradient: Tensor) -> Tensor:
        total = gradient.contiguous()
        total = total.clone() if total is gradient else total
        dist.all_reduce(total)
        return total / dist.get_world_size()

    _hook_gradients(module, averaged)
    return install_checkpointed(module)


def averaged_twice(module: nn.Module) -> Switch:
    """Divide every gradient by the number of ranks, although DDP takes the mean."""
    _hook_gradients(module, lambda gradient: gradient / dist.get_world_size())
    return install_checkpointed(module)


def one_parameter_not_reduced(module: nn.Module) -> Switch:
    """Keep DDP from one parameter."""
    names = [name for name, value in module.named_parameters() if value.requires_grad]
    module._ddp_params_and_buffers_to_ignore = names[:1]  # type: ignore[assignment]
    return install_checkpointed(module)


def replay_skipped_on_one_rank(module: nn.Module) -> Switch:
    """Checkpoint on all ranks but the last."""
    if os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        configure_gradient_checkpointing(module, False)
        return lambda on: None
    return install_torch_checkpoint(module)


def _hook_gradients(module: nn.Module, hook: object) -> None:
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(hook)  # type: ignore[no-untyped-call]
