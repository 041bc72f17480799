"""What autocast asks for on the device of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """Return the dtype that autocast computes in on the tensor's device; None while it is off."""
    kind = tensor.device.type
    try:
        enabled = torch.is_autocast_enabled(kind)
    except RuntimeError:  # torch does not know autocast for this kind of device, such as meta
        return None
    return torch.get_autocast_dtype(kind) if enabled else None
