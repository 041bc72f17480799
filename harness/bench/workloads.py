"""Whole models on the terrain, as the benchmarks of memory and time train them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from matrix.builders import awake, sparse_vae
from matrix.inputs import terrain_voxels
from matrix.trellis_batches import noisy_grid, noisy_voxels
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models import MinkUNet18, PointTransformerV3, SpaCeFormer
from wcn_ckpt.nn.modules import configure_gradient_checkpointing

_VOXELS_PER_SAMPLE = 0.774
_ROWS_PER_COLUMN = 0.895
_FLOW: dict[str, Any] = {
    "resolution": 8,
    "in_channels": 8,
    "model_channels": 128,
    "cond_channels": 64,
    "out_channels": 8,
    "num_blocks": 8,
    "num_heads": 4,
    "pe_mode": "rope",
}


@dataclass(frozen=True)
class Workload:
    """A model and what it is trained on.

    Args:
        build: makes the model.
        arguments: its positional arguments.
        sites: number of voxels or tokens in them.
    """

    build: Callable[[], nn.Module] = field(repr=False)
    arguments: tuple[Any, ...] = field(repr=False)
    sites: int

    def model(self, use_checkpoint: bool) -> nn.Module:
        """Make the model, always with the same weights, in training mode."""
        torch.manual_seed(0)
        model = self.build().train()
        configure_gradient_checkpointing(model, use_checkpoint)
        return model

    def loss(self, model: nn.Module) -> Tensor:
        """Run the model; the random numbers that it draws are always the same."""
        torch.manual_seed(1)
        leaves = pytree.tree_leaves(model(*self.arguments))
        terms = [leaf.float().square().mean() for leaf in leaves if _has_gradient(leaf)]
        return torch.stack(terms).sum()


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def training_step(workload: Workload, use_checkpoint: bool) -> tuple[nn.Module, Callable[[], None]]:
    """Return a model and a whole training step of it: forward, backward, SGD with momentum."""
    model = workload.model(use_checkpoint)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        workload.loss(model).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()

    return model, step


def terrain(voxels: int, channels: int, clouds: int = 1) -> Voxels:
    """Return crops of the terrain with about so many voxels in all.

    Args:
        voxels: how many, at most 100 000 for each cloud.
        channels: number of features.
        clouds: number of crops.
    """
    samples = voxels / clouds / _VOXELS_PER_SAMPLE
    rows = max(1, round(math.sqrt(samples * _ROWS_PER_COLUMN)))
    columns = max(1, round(samples / rows))
    return terrain_voxels((rows, columns), clouds=clouds, channels=channels)


def mink_unet(voxels: int, clouds: int = 1) -> Workload:
    """MinkUNet18 with 4 input and 20 output channels."""
    scene = terrain(voxels, 4, clouds)
    return Workload(lambda: MinkUNet18(4, 20), (scene,), len(scene))


def point_transformer(voxels: int, **arguments: Any) -> Workload:
    """Point Transformer V3, by default as deep and wide as it is by default."""
    scene = terrain(voxels, 6)
    return Workload(lambda: PointTransformerV3(**arguments), (scene,), len(scene))


def spaceformer(voxels: int, **arguments: Any) -> Workload:
    """SpaCeFormer, by default as deep and wide as it is by default."""
    scene = terrain(voxels, 6)
    return Workload(lambda: SpaCeFormer(**arguments), (scene,), len(scene))


def vae_encoder(voxels: int) -> Workload:
    """A sparse encoder of TRELLIS.2 of three stages."""
    scene = terrain(voxels, 6)

    def build() -> nn.Module:
        return sparse_vae(
            "wcn_ckpt.models:SparseUnetVaeEncoder",
            (2, 2, 4),
            in_channels=6,
            model_channels=(32, 64, 128),
            latent_channels=16,
            down_block_type=["SparseResBlockS2C3d"] * 2,
        )

    return Workload(build, (scene,), len(scene))


def vae_decoder(voxels: int) -> Workload:
    """A sparse decoder of TRELLIS.2 of three stages, asked for its predictions too."""
    scene = terrain(voxels, 16)

    def build() -> nn.Module:
        return sparse_vae(
            "wcn_ckpt.models:SparseUnetVaeDecoder",
            (4, 2, 2),
            out_channels=7,
            model_channels=(128, 64, 32),
            latent_channels=16,
            up_block_type=["SparseResBlockC2S3d"] * 2,
        )

    return Workload(build, (scene, None, True), len(scene))


def structure_flow(resolution: int) -> Workload:
    """A dense flow model of TRELLIS.2 of eight blocks, on two grids."""
    options = {**_FLOW, "resolution": resolution}
    place = {"seed": 0, "rank": 0, "microbatch": 0}
    arguments = noisy_grid(
        **place, channels=_FLOW["in_channels"], context_channels=64, resolution=resolution
    )

    def build() -> nn.Module:
        return awake("wcn_ckpt.models:SparseStructureFlowModel", **options)

    return Workload(build, arguments, 2 * resolution**3)


def latent_flow(crop: int) -> Workload:
    """A sparse flow model of TRELLIS.2 of eight blocks, on two crops of the terrain."""
    place = {"seed": 0, "rank": 0, "microbatch": 0, "crop": crop}
    arguments = noisy_voxels(**place, channels=_FLOW["in_channels"], context_channels=64)

    def build() -> nn.Module:
        return awake("wcn_ckpt.models:SLatFlowModel", **_FLOW)

    return Workload(build, arguments, len(arguments[0]))
