"""The inputs of a job on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from harness.importing import load
from harness.job import Job
from harness.structures import leaves, with_tensors

_MOST_KEPT = 256
_KEPT: dict[tuple[str, str], Any] = {}
"""Inputs of this rank, kept between cases: drawing them costs more than a small case."""


def fresh_arguments(
    job: Job, rank: int, microbatch: int, device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Tensor]]:
    """Return arguments that no run has touched.

    Args:
        job: The job.
        rank: The rank they are for.
        microbatch: Number of the microbatch.
        device: Where their tensors are put.

    Returns:
        The positional arguments, the keyword arguments, and the leaves in them that require grad,
        by name.
    """

    def fresh(tensor: Tensor) -> Tensor:
        copied = tensor.detach().to(device, copy=True)
        return copied.requires_grad_(tensor.requires_grad)

    made = with_tensors(_inputs(job, rank, microbatch), fresh)
    wanted = {
        f"microbatch{microbatch}.{position}": leaf.value
        for position, leaf in enumerate(leaves(made))
        if isinstance(leaf.value, Tensor) and leaf.value.requires_grad
    }
    return *as_call(made), wanted


def as_call(made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as arguments of a call: a mapping is keywords, a tuple several arguments.

    Args:
        made: What an input function returned.

    Returns:
        The positional and the keyword arguments.
    """
    if isinstance(made, Mapping):
        return (), dict(made)
    return made if type(made) is tuple else (made,), {}


def forget_inputs() -> None:
    """Let go of the inputs that are kept between cases."""
    _KEPT.clear()


def _inputs(job: Job, rank: int, microbatch: int) -> Any:
    place = f"{job.seed} {rank} {microbatch} {sorted(job.input_arguments.items())}"
    key = (job.inputs, place)
    if key not in _KEPT:
        made = load(job.inputs)(
            seed=job.seed, rank=rank, microbatch=microbatch, **job.input_arguments
        )
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = made
    return _KEPT[key]
