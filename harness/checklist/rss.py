"""Peak memory of a stretch of code in a process of its own: a rank."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Callable[[], int | None]]:
    """Measure how far memory grows at most inside.

    On CUDA this is the allocator's peak, on CPU the peak of the resident set of this process: Linux
    resets the mark on request. Freed memory is handed back to the system first, so that it cannot
    hide what is allocated again.

    Args:
        device: Where the tensors are.

    Yields:
        A function that returns the growth so far in bytes; None where it cannot be measured.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        yield lambda: torch.cuda.max_memory_allocated(device) - allocated
        return
    resident = _reset()
    yield lambda: None if resident is None else max(0, (_field("VmHWM") or 0) - resident)


def _reset() -> int | None:
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text(_RESET_PEAK)
    except (OSError, AttributeError):
        return None
    return _field("VmRSS")


def _field(name: str) -> int | None:
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None
