"""Sparse decoders of TRELLIS.2; see `wcn_ckpt.models.trellis2.shape_vae`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from wcn_ckpt.geometry import Voxels
from wcn_ckpt.models.trellis2.sparse_conv_blocks import SparseConvNeXtBlock3d, SparseResBlockC2S3d
from wcn_ckpt.models.trellis2.sparse_vae import SparseVae
from wcn_ckpt.nn.modules.sparse_conv import check_positive
from wcn_ckpt.nn.modules.sparse_unet_stages import SparseUNetDecoderStages

DECODER_BLOCKS: dict[str, type[nn.Module]] = {
    "SparseConvNeXtBlock3d": SparseConvNeXtBlock3d,
    "SparseResBlockC2S3d": SparseResBlockC2S3d,
}


class SparseUnetVaeDecoder(SparseVae):
    """Decodes latents to a finer grid, whose voxels it predicts or is given.

    Args:
        out_channels: channels of the output.
        model_channels: channels of each stage.
        latent_channels: channels of the latent.
        num_blocks: blocks of each stage.
        block_type: name of the blocks of each stage: `"SparseConvNeXtBlock3d"`.
        up_block_type: name of the block after each stage but the last: `"SparseResBlockC2S3d"`.
        block_args: keyword arguments of each stage, for both its kinds of blocks.
        use_fp16: whether the stages compute in float16.
        pred_subdiv: whether the blocks predict which children exist.

    Raises:
        KeyError: a block is unknown; also a ValueError.
        TypeError: a block does not take an argument.
        ValueError: numbers of stages differ, or a size is not positive or not divisible.
    """

    blocks: SparseUNetDecoderStages

    def __init__(
        self,
        out_channels: int,
        model_channels: Sequence[int],
        latent_channels: int,
        num_blocks: Sequence[int],
        block_type: Sequence[str],
        up_block_type: Sequence[str],
        block_args: Sequence[Mapping[str, Any]],
        use_fp16: bool = False,
        pred_subdiv: bool = True,
    ) -> None:
        """See the class."""
        super().__init__()
        check_positive(out_channels, "out_channels")
        check_positive(latent_channels, "latent_channels")
        self.pred_subdiv = pred_subdiv
        self.blocks = SparseUNetDecoderStages(
            model_channels,
            num_blocks,
            block_type,
            up_block_type,
            block_args,
            DECODER_BLOCKS,
            {"pred_subdiv": pred_subdiv},
        )
        self.from_latent = nn.Linear(latent_channels, model_channels[0])
        self.output_layer = nn.Linear(model_channels[-1], out_channels)
        if use_fp16:
            self.convert_to_fp16()

    @property
    def _entry(self) -> nn.Linear:
        return self.from_latent

    def forward(
        self, x: Voxels, guide_subs: Sequence[Voxels] | None = None, return_subs: bool = False
    ) -> Voxels | tuple[Voxels, list[Voxels]]:
        """Decode.

        Args:
            x: voxels with `latent_channels` channels.
            guide_subs: for each resampling block, which children exist; only without
                `pred_subdiv`. Without, the children that an encoder packed into `x`.
            return_subs: whether the predictions are wanted too; only with `pred_subdiv`.

        Returns:
            Voxels with `out_channels` channels; with `return_subs` also the logits of each
            resampling block, a list of voxels.

        Raises:
            TypeError: `x` is not `Voxels`, or of another dtype than the first layer.
            ValueError: an argument does not go with `pred_subdiv`, or channels, rows or numbers do
                not fit.
        """
        if return_subs and not self.pred_subdiv:
            raise ValueError(
                "return_subs=True asks for predictions, but this model makes none; build it with "
                "pred_subdiv=True"
            )
        out, subs = self._decode(x, guide_subs)
        return (out, subs) if return_subs else out

    def upsample(self, x: Voxels, upsample_times: int) -> Tensor:
        """Return the voxels at the entry of a stage.

        Args:
            x: voxels with `latent_channels` channels.
            upsample_times: number of the stage, which is the number of resampling blocks to run.

        Returns:
            (N', 4) rows `(cloud, x, y, z)`.

        Raises:
            ValueError: the model does not predict voxels, or there is no such stage.
        """
        if not self.pred_subdiv:
            raise ValueError(
                "upsample follows predicted voxels, but this model was built with pred_subdiv=False"
            )
        h, _ = self.blocks.run_with_subs(self._enter(x), stop_before_stage=upsample_times)
        return h.batch_indexed_coordinates

    def _decode(
        self, x: Voxels, guide_subs: Sequence[Voxels] | None
    ) -> tuple[Voxels, list[Voxels]]:
        if guide_subs is not None and self.pred_subdiv:
            raise ValueError(
                "guide_subs says which children exist, but this model predicts them; build it with "
                "pred_subdiv=False"
            )
        h, subs = self.blocks.run_with_subs(self._enter(x), guide_subs)
        return h.replace_features(self._leave(h, x.dtype, self.output_layer)), subs


class FlexiDualGridVaeDecoder(SparseUnetVaeDecoder):
    """`SparseUnetVaeDecoder` for dual grids; it always predicts which children exist.

    Args:
        resolution: cells along each axis of the finest grid; kept for code that makes meshes.
        model_channels: as in `SparseUnetVaeDecoder`, like all that follow.
        latent_channels: channels of the latent.
        num_blocks: blocks of each stage.
        block_type: name of the blocks of each stage.
        up_block_type: name of the block after each stage but the last.
        block_args: keyword arguments of each stage.
        voxel_margin: how far outside its cell a vertex may lie, in cells.
        use_fp16: whether the stages compute in float16.

    Raises:
        KeyError: a block is unknown; also a ValueError.
        TypeError: a block does not take an argument.
        ValueError: numbers of stages differ, or a size is not positive or not divisible.
    """

    def __init__(
        self,
        resolution: int,
        model_channels: Sequence[int],
        latent_channels: int,
        num_blocks: Sequence[int],
        block_type: Sequence[str],
        up_block_type: Sequence[str],
        block_args: Sequence[Mapping[str, Any]],
        voxel_margin: float = 0.5,
        use_fp16: bool = False,
    ) -> None:
        """See the class."""
        check_positive(resolution, "resolution")
        if not 0 <= voxel_margin < math.inf:
            raise ValueError(f"voxel_margin must be finite and not negative, got {voxel_margin!r}")
        super().__init__(
            7,
            model_channels,
            latent_channels,
            num_blocks,
            block_type,
            up_block_type,
            block_args,
            use_fp16,
        )
        self.resolution = resolution
        self.voxel_margin = voxel_margin

    def forward(  # type: ignore[override]  # three outputs instead of one
        self, x: Voxels, guide_subs: Sequence[Voxels] | None = None, return_subs: bool = False
    ) -> tuple[Voxels, Voxels, Voxels]:
        """Decode.

        Args:
            x: voxels with `latent_channels` channels.
            guide_subs: refused, as the model predicts which children exist.
            return_subs: accepted, without effect; for the predictions, to train `to_subdiv`, call
                `SparseUnetVaeDecoder.forward(model, x, return_subs=True)`.

        Returns:
            Three times the same voxels: vertices (N, 3) in `[-margin, 1 + margin]`, flags (N, 3)
            bool of the edges that the surface crosses, and the weight (N, 1), positive, with which
            a quad is split.

        Raises:
            TypeError: `x` is not `Voxels`, or of another dtype than the first layer.
            ValueError: `guide_subs` is given, or `x` has other channels.
        """
        h, _ = self._decode(x, guide_subs)
        rows = h.batched_features.tensor
        margin = self.voxel_margin
        vertices = (1 + 2 * margin) * rows[:, 0:3].sigmoid() - margin
        return (
            h.replace_features(vertices),
            h.replace_features(rows[:, 3:6] > 0),
            h.replace_features(F.softplus(rows[:, 6:7])),
        )
