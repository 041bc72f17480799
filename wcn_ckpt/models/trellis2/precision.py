"""The dtype that the blocks of a model compute in."""

from __future__ import annotations

import torch
from torch import nn

from wcn_ckpt.nn.modules.errors import UnknownNameError
from wcn_ckpt.nn.modules.sparse_conv import SparseConv3d

DTYPES = {
    "f16": torch.float16,
    "fp16": torch.float16,
    "float16": torch.float16,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "f32": torch.float32,
    "fp32": torch.float32,
    "float32": torch.float32,
}

MATRIX_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, SparseConv3d)
"""Layers that are cast; norms and learned offsets keep their dtype."""


def str_to_dtype(name: str | torch.dtype) -> torch.dtype:
    """Return the dtype of a name such as `"bf16"`; a dtype is returned as it is.

    Raises:
        KeyError: the name is unknown; also a ValueError.
    """
    if isinstance(name, torch.dtype):
        return name
    if name not in DTYPES:
        raise UnknownNameError(f"no dtype {name!r}; known are {sorted(DTYPES)}")
    return DTYPES[name]


def cast_matrix_layers(blocks: nn.Module, dtype: torch.dtype) -> None:
    """Cast the linear and convolution layers below a module, in place."""
    for module in blocks.modules():
        if isinstance(module, MATRIX_LAYERS):
            module.to(dtype)


def matrix_dtype(blocks: nn.Module, entry: nn.Linear | nn.Conv3d) -> torch.dtype:
    """Return the dtype of the first matrix layer below a module; of `entry` if there is none."""
    layers = (m.weight.dtype for m in blocks.modules() if isinstance(m, MATRIX_LAYERS))
    return next(layers, entry.weight.dtype)
