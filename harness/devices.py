"""Devices and process group backends of the ranks."""

from __future__ import annotations

import os

import torch


def device_of(kind: str, rank: int) -> torch.device:
    """Return the device of a rank; ranks share CUDA devices where there are fewer than ranks.

    Args:
        kind: ``cpu`` or ``cuda``.
        rank: The rank; on a machine with several groups or nodes, LOCAL_RANK comes first.

    Raises:
        RuntimeError: If there is no such device.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("this case needs a CUDA device, and torch finds none")
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    return torch.device(kind, local_rank % torch.cuda.device_count())


def check_device(kind: str, backend: str, ranks: int) -> None:
    """Refuse a device or backend that this machine does not have.

    Args:
        kind: ``cpu`` or ``cuda``.
        backend: One of :data:`harness.ranks.BACKENDS`.
        ranks: Number of ranks on this machine.

    Raises:
        ValueError: If there is none; the message says what there is.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device cpu")
    if backend == "nccl" and kind == "cpu":
        raise ValueError("--backend nccl needs --device cuda; on CPU use gloo")
    if backend == "nccl" and ranks > torch.cuda.device_count():
        raise ValueError(
            f"--backend nccl needs a CUDA device for each rank: {ranks} ranks, "
            f"{torch.cuda.device_count()} devices; use --backend gloo"
        )


def group_backend(backend: str, ranks: int) -> str:
    """Return the backend of a process group, as torch takes it.

    Verdicts are exchanged as CPU tensors, so gloo serves the CPU in any case.

    Args:
        backend: One of :data:`harness.ranks.BACKENDS`.
        ranks: Number of ranks of the group on this machine.
    """
    if backend == "auto":
        backend = "nccl" if 0 < ranks <= torch.cuda.device_count() else "gloo"
    return "gloo" if backend == "gloo" else f"cpu:gloo,cuda:{backend}"
