"""Sparse convolution as gather, matrix product and scatter, differentiable to any order.

With `in[p]` and `out[q]` the rows of the pairs (p, q) of offset k, a convolution is
`out[q] += in[p] @ W[k]`. It is linear in its features and in its weight, so its gradients are a
convolution along the transposed map and a sum of outer products, whose gradients are convolutions
again. Only the input features, the weight and the map are kept for backward.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from wcn_ckpt.geometry.autocast import autocast_dtype
from wcn_ckpt.nn.functional.kernel_maps import KernelMap

HALF_TYPES = (torch.float16, torch.bfloat16)


def sparse_conv(features: Tensor, weight: Tensor, pairs: KernelMap) -> Tensor:
    """Convolve features along a kernel map.

    Half-precision products are summed in float32. On the CPU the result is deterministic.

    Args:
        features: (num_in, C_in) floating point.
        weight: (K, C_in, C_out), or (K, G, C_in / G, C_out / G) for G groups. It is rounded to the
            dtype of the features; its gradient has its own dtype.
        pairs: the kernel map, with K offsets.

    Returns:
        (num_out, C_out) in the dtype of the features; zero rows where nothing is paired.
    """
    return _apply(_Convolution, features, weight, pairs)


def grouped_matmul(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows (N, C_in) by a weight (C_in, C_out) or (G, C_in / G, C_out / G)."""
    if weight.ndim == 2:
        return rows @ weight
    groups, c_in, c_out = weight.shape
    product = rows.reshape(len(rows), groups, c_in).transpose(0, 1) @ weight
    return product.transpose(0, 1).reshape(len(rows), groups * c_out)


class _Convolution(Function):
    """`out[q] = sum of in[p] @ W[k]` over the pairs (p, q) of every offset k."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, pairs: KernelMap) -> Tensor:
        ctx.save_for_backward(features, weight, pairs.in_rows, pairs.out_rows)
        ctx.layout = pairs.layout
        wide = _accumulator(features.dtype)
        taps = weight.to(features.dtype).to(wide)
        with _autocast_off(features):
            out = _identity_part(features, taps, pairs)
            for offset, in_rows, out_rows in pairs.pairs():
                gathered = features.index_select(0, in_rows).to(wide)
                out.index_add_(0, out_rows, grouped_matmul(gathered, taps[offset]))
        return out.to(features.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, weight, in_rows, out_rows = ctx.saved_tensors
        pairs = KernelMap(in_rows, out_rows, ctx.layout)
        grad_features = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_features = sparse_conv(grad, weight.transpose(-1, -2), pairs.transposed())
        if ctx.needs_input_grad[1]:
            shape, dtype = weight.shape, weight.dtype
            grad_weight = _apply(_WeightGradient, features, grad, pairs, shape, dtype)
        return grad_features, grad_weight, None


class _WeightGradient(Function):
    """`W[k] = sum of in[p]^T out[q]` over the pairs (p, q) of each offset k."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        grad: Tensor,
        pairs: KernelMap,
        shape: torch.Size,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(features, grad, pairs.in_rows, pairs.out_rows)
        ctx.layout = pairs.layout
        wide = _accumulator(features.dtype)
        result = torch.zeros(shape, dtype=wide, device=features.device)
        identity = pairs.layout.identity
        with _autocast_off(features):
            if identity is not None:
                result[identity] = _outer(features.to(wide), grad.to(wide), shape[1:])
            for offset, in_rows, out_rows in pairs.pairs():
                gathered = features.index_select(0, in_rows).to(wide)
                paired = grad.index_select(0, out_rows).to(wide)
                result[offset] = _outer(gathered, paired, shape[1:])
        return result.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        features, out_grad, in_rows, out_rows = ctx.saved_tensors
        pairs = KernelMap(in_rows, out_rows, ctx.layout)
        grad_features = grad_out_grad = None
        if ctx.needs_input_grad[0]:
            grad_features = sparse_conv(out_grad, grad.transpose(-1, -2), pairs.transposed())
        if ctx.needs_input_grad[1]:
            grad_out_grad = sparse_conv(features, grad, pairs)
        return grad_features, grad_out_grad, None, None, None


def _apply(function: type[Function], *args: Any) -> Tensor:
    # Torch declares its type since release 2.14.
    result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call,unused-ignore]
    return result


def _identity_part(features: Tensor, taps: Tensor, pairs: KernelMap) -> Tensor:
    """Return the output (num_out, C_out) with the identity offset's product, or zeros."""
    identity = pairs.layout.identity
    if identity is not None:
        return grouped_matmul(features.to(taps.dtype), taps[identity])
    groups = taps.shape[1] if taps.ndim == 4 else 1
    return taps.new_zeros(pairs.layout.num_out, groups * taps.shape[-1])


def _outer(rows: Tensor, grads: Tensor, shape: torch.Size) -> Tensor:
    """Return `rows^T grads`, group by group, in the shape of one kernel offset's weight."""
    if len(shape) == 2:
        return rows.t() @ grads
    groups, c_in, c_out = shape
    left = rows.reshape(len(rows), groups, c_in).permute(1, 2, 0)
    return left @ grads.reshape(len(grads), groups, c_out).transpose(0, 1)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF_TYPES else dtype


def _autocast_off(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products keep the dtype that they are given."""
    if autocast_dtype(tensor) is None:
        return nullcontext()
    return torch.autocast(tensor.device.type, enabled=False)
