"""The variational autoencoder of TRELLIS.2 for coarse occupancy, on dense grids.

It has no checkpoint boundary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wcn_ckpt.models.trellis2.posterior import Posterior
from wcn_ckpt.models.trellis2.precision import cast_matrix_layers, matrix_dtype
from wcn_ckpt.nn.modules.arguments import check_same_dtype, check_tensor
from wcn_ckpt.nn.modules.checks import check_count
from wcn_ckpt.nn.modules.conv3d_blocks import (
    DownsampleBlock3d,
    ResBlock3d,
    UpsampleBlock3d,
    norm_layer_3d,
)
from wcn_ckpt.nn.modules.sparse_conv import check_positive


class _SparseStructureVae(nn.Module):
    """What encoder and decoder share: blocks in a dtype of their own between two layers."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        channels: Sequence[int],
        num_res_blocks: int,
        num_res_blocks_middle: int,
        norm_type: str,
        resample: type[nn.Module],
    ) -> None:
        super().__init__()
        if not channels:
            raise ValueError("channels needs at least one entry, one for each resolution, got []")
        check_count(num_res_blocks, "num_res_blocks")
        check_count(num_res_blocks_middle, "num_res_blocks_middle")
        for name, value in (
            ("in_channels", in_channels),
            ("out_channels", out_channels),
            *(("every entry of channels", width) for width in channels),
        ):
            check_positive(value, name)
        self.channels = list(channels)
        self.input_layer = nn.Conv3d(in_channels, channels[0], 3, padding=1)
        self.blocks = nn.ModuleList()
        for level, width in enumerate(channels):
            self.blocks.extend(ResBlock3d(width) for _ in range(num_res_blocks))
            if level + 1 < len(channels):
                self.blocks.append(resample(width, channels[level + 1]))
        inner = channels[-1] if resample is DownsampleBlock3d else channels[0]
        self.middle_block = nn.Sequential(
            *(ResBlock3d(inner) for _ in range(num_res_blocks_middle))
        )
        self.out_layer = nn.Sequential(
            norm_layer_3d(norm_type, channels[-1]),
            nn.SiLU(),
            nn.Conv3d(channels[-1], out_channels, 3, padding=1),
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the blocks compute in."""
        return matrix_dtype(self.blocks, self.input_layer.weight.dtype)

    def convert_to_fp16(self) -> None:
        """Cast the convolutions of the blocks to float16; the first and last layer stay."""
        cast_matrix_layers(self.blocks, torch.float16)
        cast_matrix_layers(self.middle_block, torch.float16)

    def _enter(self, x: Tensor) -> Tensor:
        check_tensor(self, x, ("B", self.input_layer.in_channels, "R", "R", "R"))
        check_same_dtype(self, x, self.input_layer.weight)
        h: Tensor = self.input_layer(x)
        return h.to(matrix_dtype(self.blocks, h.dtype))


class SparseStructureEncoder(_SparseStructureVae):
    """Encodes a dense grid into a latent distribution on a coarser grid.

    Args:
        in_channels: channels of the input.
        latent_channels: channels of the latent.
        num_res_blocks: residual blocks per resolution.
        channels: channels of each resolution, the input's first; each next one halves the grid.
        num_res_blocks_middle: residual blocks at the coarsest resolution.
        norm_type: normalization before the last layer, see `norm_layer_3d`.
        use_fp16: whether the blocks compute in float16.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or the name is unknown.
    """

    def __init__(
        self,
        in_channels: int,
        latent_channels: int,
        num_res_blocks: int,
        channels: Sequence[int],
        num_res_blocks_middle: int = 2,
        norm_type: str = "layer",
        use_fp16: bool = False,
    ) -> None:
        """See the class."""
        check_positive(latent_channels, "latent_channels")
        super().__init__(
            in_channels,
            2 * latent_channels,
            channels,
            num_res_blocks,
            num_res_blocks_middle,
            norm_type,
            DownsampleBlock3d,
        )
        if use_fp16:
            self.convert_to_fp16()

    def forward(
        self, x: Tensor, sample_posterior: bool = False, return_raw: bool = False
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Encode.

        Args:
            x: (B, in_channels, R, R, R), with R divisible by 2 for each resolution after the
                first.
            sample_posterior: whether to draw the latent, with torch's generator; otherwise it is
                the mean.
            return_raw: whether the parameters of the distribution are wanted too.

        Returns:
            The latent (B, latent_channels, r, r, r); with `return_raw` also mean and logarithm of
            the variance.

        Raises:
            TypeError: `x` is no tensor, or of another dtype than the first layer.
            ValueError: the shape is another one.
        """
        step = 2 ** (len(self.channels) - 1)
        if isinstance(x, Tensor) and any(size % step for size in x.shape[2:]):
            raise ValueError(
                f"{len(self.channels)} resolutions halve the grid {len(self.channels) - 1} times, "
                f"so its sizes must be divisible by {step}, got {tuple(x.shape[2:])}"
            )
        h = self._enter(x)
        for block in self.blocks:
            h = block(h)
        h = self.middle_block(h)
        posterior = Posterior.from_channels(self.out_layer(h.to(x.dtype)))
        z = posterior.draw(sample_posterior)
        return (z, *posterior) if return_raw else z


class SparseStructureDecoder(_SparseStructureVae):
    """Decodes a latent grid to a finer dense grid.

    Args:
        out_channels: channels of the output.
        latent_channels: channels of the latent.
        num_res_blocks: residual blocks per resolution.
        channels: channels of each resolution, the latent's first; each next one doubles the grid.
        num_res_blocks_middle: residual blocks at the coarsest resolution.
        norm_type: normalization before the last layer, see `norm_layer_3d`.
        use_fp16: whether the blocks compute in float16.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or the name is unknown.
    """

    def __init__(
        self,
        out_channels: int,
        latent_channels: int,
        num_res_blocks: int,
        channels: Sequence[int],
        num_res_blocks_middle: int = 2,
        norm_type: str = "layer",
        use_fp16: bool = False,
    ) -> None:
        """See the class."""
        super().__init__(
            latent_channels,
            out_channels,
            channels,
            num_res_blocks,
            num_res_blocks_middle,
            norm_type,
            UpsampleBlock3d,
        )
        if use_fp16:
            self.convert_to_fp16()

    def forward(self, x: Tensor) -> Tensor:
        """Decode.

        Args:
            x: (B, latent_channels, r, r, r).

        Returns:
            (B, out_channels, R, R, R).

        Raises:
            TypeError: `x` is no tensor, or of another dtype than the first layer.
            ValueError: the shape is another one.
        """
        h = self.middle_block(self._enter(x))
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.out_layer(h.to(x.dtype))
        return out
