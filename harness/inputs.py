"""The inputs of a job on one rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from harness.importing import load
from harness.job import Job

_MOST_KEPT = 256
_KEPT: dict[tuple[str, str], tuple[Any, ...]] = {}
"""Inputs of this rank, kept between cases: drawing them costs more than a small case."""


def fresh_arguments(
    job: Job, rank: int, microbatch: int, device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """Return positional arguments that no run has touched.

    Args:
        job: The job.
        rank: The rank they are for.
        microbatch: Number of the microbatch.
        device: Where their tensors are put.

    Returns:
        The arguments, and the leaves in them that require grad, by name.
    """
    flat, structure = pytree.tree_flatten(_inputs(job, rank, microbatch))
    fresh: list[Any] = []
    leaves: dict[str, Tensor] = {}
    for position, leaf in enumerate(flat):
        if isinstance(leaf, Tensor):
            wanted = leaf.requires_grad
            leaf = leaf.detach().to(device)
            if wanted:
                leaf = leaf.clone().requires_grad_()
                leaves[f"microbatch{microbatch}.{position}"] = leaf
        fresh.append(leaf)
    return pytree.tree_unflatten(fresh, structure), leaves


def _inputs(job: Job, rank: int, microbatch: int) -> tuple[Any, ...]:
    place = f"{job.seed} {rank} {microbatch} {sorted(job.input_arguments.items())}"
    key = (job.inputs, place)
    if key not in _KEPT:
        made = load(job.inputs)(
            seed=job.seed, rank=rank, microbatch=microbatch, **job.input_arguments
        )
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.pop(next(iter(_KEPT)))
        _KEPT[key] = made if isinstance(made, tuple) else (made,)
    return _KEPT[key]
