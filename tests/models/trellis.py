"""Tiny TRELLIS.2 models and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.geometry.clouds import make_voxels
from tests.nn.twins import fill_zeros
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models import (
    SLatFlowModel,
    SparseStructureFlowModel,
    SparseUnetVaeDecoder,
    SparseUnetVaeEncoder,
)

SIZES = (9, 0, 14, 1)
SIDE, CHANNELS, HEADS, COND = 3, 24, 2, 10
FLOWS: list[Any] = [SparseStructureFlowModel, SLatFlowModel]


def make(cls: type[nn.Module], *args: Any, **options: Any) -> Any:
    """Build a model whose parameters are all different from zero."""
    torch.manual_seed(0)
    model = cls(*args, **options)
    fill_zeros(model)
    return model


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scene(channels: int, sizes: tuple[int, ...] = SIZES) -> Voxels:
    return make_voxels(sizes, channels, torch.float32)


def stages(depth: int, down: bool, **change: Any) -> dict[str, Any]:
    widths = [16, 32, 64][:depth]
    name, block = (
        ("down_block_type", "SparseResBlockS2C3d")
        if down
        else ("up_block_type", "SparseResBlockC2S3d")
    )
    return {
        "model_channels": widths if down else widths[::-1],
        "latent_channels": 8,
        "num_blocks": [1] * depth,
        "block_type": ["SparseConvNeXtBlock3d"] * depth,
        name: [block] * (depth - 1),
        "block_args": [{} for _ in range(depth)],
        **change,
    }


def encoder(depth: int = 2, **change: Any) -> SparseUnetVaeEncoder:
    model: SparseUnetVaeEncoder = make(SparseUnetVaeEncoder, 6, **stages(depth, True, **change))
    return model


def decoder(depth: int = 2, **change: Any) -> SparseUnetVaeDecoder:
    model: SparseUnetVaeDecoder = make(SparseUnetVaeDecoder, 7, **stages(depth, False, **change))
    return model


def flow(cls: Any, **options: Any) -> Any:
    sizes = {"num_blocks": 2, "num_heads": HEADS, "mlp_ratio": 2}
    return make(cls, SIDE, 4, CHANNELS, COND, 5, **{**sizes, **options})


def flow_inputs(cls: Any) -> tuple[Any, Tensor, Tensor]:
    if cls is SLatFlowModel:
        batch_size, x = len(SIZES), scene(4)
    else:
        batch_size, x = 2, tensor(2, 4, SIDE, SIDE, SIDE)
    return x, tensor(batch_size, seed=1).abs(), tensor(batch_size, 6, COND, seed=2)


FAMILIES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "encoder": lambda: (encoder(), (scene(6),)),
    "decoder": lambda: (decoder(), (scene(8),)),
    "dense flow": lambda: (flow(FLOWS[0], pe_mode="rope"), flow_inputs(FLOWS[0])),
    "sparse flow": lambda: (flow(FLOWS[1], pe_mode="rope"), flow_inputs(FLOWS[1])),
}
"""A model and its arguments, by name."""
