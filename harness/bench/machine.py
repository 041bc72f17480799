"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import resource
from typing import Any

import torch

from wcn_ckpt import __version__


def machine() -> dict[str, Any]:
    """Return the processor, its cores and load, the memory, and the versions in use."""
    return {
        "processor": processor(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "wcn_ckpt": __version__,
    }


def processor() -> str:
    """Return the model name of the processor, as the kernel gives it."""
    try:
        with open("/proc/cpuinfo") as info:
            lines = [line.partition(":") for line in info]
    except OSError:
        lines = []
    names = [value.strip() for key, _, value in lines if key.strip() == "model name"]
    return names[0] if names else platform.processor() or platform.machine()


def peak_memory() -> float:
    """Return the largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_memory(process: int) -> float:
    """Return the present resident size of a process, in MiB.

    Args:
        process: its id.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{process}/statm") as statm:
        pages = int(statm.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
