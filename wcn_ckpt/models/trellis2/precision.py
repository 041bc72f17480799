"""The dtype that the blocks of a model compute in."""

from __future__ import annotations

import torch
from torch import nn

from wcn_ckpt.checkpointing.replay.sharding import modules_cast_by_fsdp
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


def matrix_dtype(blocks: nn.Module, otherwise: torch.dtype) -> torch.dtype:
    """Return the dtype that the first matrix layer below a module wants its input in.

    Args:
        blocks: the module.
        otherwise: what is returned if there is none that wants any: FSDP2 with a policy casts the
            inputs of its units, and their weights have another dtype while they are gathered.
    """
    casting = modules_cast_by_fsdp(blocks)
    layers = (m for m in blocks.modules() if isinstance(m, MATRIX_LAYERS) and m not in casting)
    return next((layer.weight.dtype for layer in layers), otherwise)
