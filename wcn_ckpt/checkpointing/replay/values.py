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
    if not has_values(tensor):
        return 0
    try:
        return tensor.data_ptr()
    except (RuntimeError, ValueError):
        return 0


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor has values to compare: meta and fake tensors have none."""
    return tensor.device.type != "meta" and getattr(tensor, "fake_mode", None) is None


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one shape and dtype, and every bit in common; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device or a.layout != b.layout:
        return False
    if not has_values(a) or not has_values(b):
        return True
    a, b = _dense(a), _dense(b)
    # Torch compares no complex numbers of half precision.
    return (a.dtype is not torch.complex32 and torch.equal(a, b)) or torch.equal(
        _bytes(a), _bytes(b)
    )


def _dense(tensor: Tensor) -> Tensor:
    tensor = local(tensor).detach()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _bytes(tensor: Tensor) -> Tensor:
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def fingerprint(tensor: Tensor) -> int:
    """A hash of all the bytes of a tensor; equal values give equal hashes within one process."""
    if not has_values(tensor):
        return 0
    flat = _dense(tensor).cpu().contiguous()
    return hash(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))
