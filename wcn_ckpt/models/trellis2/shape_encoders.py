"""Sparse encoders of TRELLIS.2; see `wcn_ckpt.models.trellis2.shape_vae`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models.trellis2.posterior import Posterior
from wcn_ckpt.models.trellis2.sparse_conv_blocks import SparseConvNeXtBlock3d, SparseResBlockS2C3d
from wcn_ckpt.models.trellis2.sparse_vae import SparseVae
from wcn_ckpt.nn.functional.resampling import check_same_sites
from wcn_ckpt.nn.modules.arguments import check_voxels
from wcn_ckpt.nn.modules.sparse_conv import check_positive
from wcn_ckpt.nn.modules.sparse_unet_stages import SparseUNetEncoderStages

ENCODER_BLOCKS: dict[str, type[nn.Module]] = {
    "SparseConvNeXtBlock3d": SparseConvNeXtBlock3d,
    "SparseResBlockS2C3d": SparseResBlockS2C3d,
}


class SparseUnetVaeEncoder(SparseVae):
    """Encodes voxels into a latent distribution on a coarser grid.

    Args:
        in_channels: channels of the input.
        model_channels: channels of each stage.
        latent_channels: channels of the latent.
        num_blocks: blocks of each stage.
        block_type: name of the blocks of each stage: `"SparseConvNeXtBlock3d"`.
        down_block_type: name of the block after each stage but the last:
            `"SparseResBlockS2C3d"`.
        block_args: keyword arguments of each stage, for both its kinds of blocks.
        use_fp16: whether the stages compute in float16.

    Raises:
        KeyError: a block is unknown; also a ValueError.
        TypeError: a block does not take an argument.
        ValueError: numbers of stages differ, or a size is not positive or not divisible.
    """

    blocks: SparseUNetEncoderStages

    def __init__(
        self,
        in_channels: int,
        model_channels: Sequence[int],
        latent_channels: int,
        num_blocks: Sequence[int],
        block_type: Sequence[str],
        down_block_type: Sequence[str],
        block_args: Sequence[Mapping[str, Any]],
        use_fp16: bool = False,
    ) -> None:
        """See the class."""
        super().__init__()
        check_positive(in_channels, "in_channels")
        check_positive(latent_channels, "latent_channels")
        self.blocks = SparseUNetEncoderStages(
            model_channels, num_blocks, block_type, down_block_type, block_args, ENCODER_BLOCKS
        )
        self.input_layer = nn.Linear(in_channels, model_channels[0])
        self.to_latent = nn.Linear(model_channels[-1], 2 * latent_channels)
        if use_fp16:
            self.convert_to_fp16()

    @property
    def _entry(self) -> nn.Linear:
        return self.input_layer

    def forward(
        self, x: Voxels, sample_posterior: bool = False, return_raw: bool = False
    ) -> Voxels | tuple[Voxels, Tensor, Tensor]:
        """Encode.

        Args:
            x: voxels with `in_channels` channels.
            sample_posterior: whether to draw the latent, with torch's generator; otherwise it is
                the mean.
            return_raw: whether the parameters of the distribution are wanted too.

        Returns:
            The latent, voxels with `latent_channels` channels; with `return_raw` also mean and
            logarithm of the variance, (M, latent_channels).

        Raises:
            TypeError: `x` is not `Voxels`, or of another dtype than the first layer.
            ValueError: it has other channels, or voxels repeat.
        """
        h = self.blocks.run(self._enter(x))
        posterior = Posterior.from_channels(self._leave(h, x.dtype, self.to_latent))
        z = h.replace_features(posterior.draw(sample_posterior))
        return (z, *posterior) if return_raw else z


class FlexiDualGridVaeEncoder(SparseUnetVaeEncoder):
    """`SparseUnetVaeEncoder` for dual grids: a vertex and three edge flags per voxel.

    The arguments are those of `SparseUnetVaeEncoder` without `in_channels`, which is 6.
    """

    def __init__(
        self,
        model_channels: Sequence[int],
        latent_channels: int,
        num_blocks: Sequence[int],
        block_type: Sequence[str],
        down_block_type: Sequence[str],
        block_args: Sequence[Mapping[str, Any]],
        use_fp16: bool = False,
    ) -> None:
        """See the class."""
        super().__init__(
            6,
            model_channels,
            latent_channels,
            num_blocks,
            block_type,
            down_block_type,
            block_args,
            use_fp16,
        )

    def forward(  # type: ignore[override]  # two inputs instead of one
        self,
        vertices: Voxels,
        intersected: Voxels,
        sample_posterior: bool = False,
        return_raw: bool = False,
    ) -> Voxels | tuple[Voxels, Tensor, Tensor]:
        """Encode.

        Args:
            vertices: voxels with the position of a vertex in its cell, (N, 3) in [0, 1].
            intersected: the same voxels with flags (N, 3) of the edges that the surface crosses,
                bool or 0/1.
            sample_posterior: as in `SparseUnetVaeEncoder`.
            return_raw: as in `SparseUnetVaeEncoder`.

        Returns:
            As `SparseUnetVaeEncoder`.

        Raises:
            TypeError: an argument is not `Voxels`.
            ValueError: channels or rows do not fit.
        """
        check_voxels(self, vertices, 3, "vertices")
        check_same_sites(vertices, intersected, "intersected")
        if intersected.num_channels != 3:
            raise ValueError(f"intersected needs 3 channels, got {intersected.num_channels}")
        positions = vertices.batched_features.tensor
        flags = intersected.batched_features.tensor.to(positions.dtype)
        x = vertices.replace_features(torch.cat([positions - 0.5, flags - 0.5], dim=1))
        return super().forward(x, sample_posterior, return_raw)
