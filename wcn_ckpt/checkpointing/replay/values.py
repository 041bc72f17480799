"""Comparing tensors with what they were: by version counter, and by every bit."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies on this rank; comparing a DTensor itself is a collective."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def version(tensor: Tensor) -> int:
    """The autograd version counter; -1 for inference tensors, which have none."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def address(tensor: Tensor) -> int:
    """Where the data of a tensor lie; 0 where it has none of its own to point at."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError):
        return 0


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one shape and dtype, and every bit in common; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    a, b = local(a).detach(), local(b).detach()
    return torch.equal(a, b) or torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def fingerprint(tensor: Tensor) -> int:
    """A hash of all the bytes of a tensor; equal values give equal hashes within one process."""
    flat = local(tensor).detach().to_dense().cpu().contiguous()
    return hash(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))
