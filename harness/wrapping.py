"""What a program wraps the model in."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.sharding import Root, shard
from matrix.programs import Program
from wcn_ckpt.nn.modules import SyncBatchNorm

# Torch 2.13 renamed the option and warns about the old name.
_BUFFER_OPTION = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


def wrap(module: nn.Module, program: Program) -> nn.Module:
    """Wrap a module as its program asks.

    Args:
        module: The subject.
        program: The training step.

    Returns:
        The module itself, or DDP or an FSDP2 root around it.

    Raises:
        ValueError: If the program's wrapper is not known.
    """
    if program.wrapper == "none":
        return module
    if program.wrapper == "ddp":
        options: dict[str, Any] = {
            _BUFFER_OPTION: program.broadcast_buffers,
            "init_sync": program.init_sync,
            "find_unused_parameters": program.find_unused,
            "static_graph": program.static_graph,
            "gradient_as_bucket_view": program.bucket_view,
        }
        return DistributedDataParallel(module, **options)
    if program.wrapper == "fsdp2":
        return shard(module, program)
    raise ValueError(f"no wrapper {program.wrapper!r}; valid wrappers: none, ddp, fsdp2")


def synchronize_norms(module: nn.Module, device: str) -> nn.Module:
    """Let BatchNorms compute their statistics over all ranks.

    Args:
        module: The subject, changed in place.
        device: ``cuda`` takes torch's own SyncBatchNorm, which refuses the CPU, ``cpu`` ours.

    Returns:
        The module, or what replaces it where it is a BatchNorm itself.
    """
    norms: Any = nn.SyncBatchNorm if device == "cuda" else SyncBatchNorm
    converted: nn.Module = norms.convert_sync_batchnorm(module)
    return converted


@contextmanager
def gradient_sync(model: nn.Module, synced: bool) -> Iterator[None]:
    """Run forwards and backwards with or without gradients being reduced over ranks.

    Args:
        model: What :func:`wrap` returned.
        synced: False for DDP's ``no_sync``, and its like of FSDP2; without a wrapper it makes no
            difference.
    """
    if synced:
        yield
    elif isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, Root):
        with model.no_sync():
            yield
    else:
        yield
