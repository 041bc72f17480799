"""The blocks of the sparse autoencoder, under the names and arguments of TRELLIS.2."""

from __future__ import annotations

from wcn_ckpt.nn.modules import sparse_convnext
from wcn_ckpt.nn.modules.sparse_unet import (
    SparseChannelToSpatialResBlock3d,
    SparseSpatialToChannelResBlock3d,
)

__all__ = ["SparseConvNeXtBlock3d", "SparseResBlockC2S3d", "SparseResBlockS2C3d"]


class SparseConvNeXtBlock3d(sparse_convnext.SparseConvNeXtBlock3d):
    """ConvNeXt block with a 3 x 3 x 3 convolution.

    Args:
        channels: channels of the input and the output.
        mlp_ratio: width of the network as a multiple of the channels.
        use_checkpoint: whether the block starts with checkpointing enabled.
    """

    def __init__(self, channels: int, mlp_ratio: float = 4.0, use_checkpoint: bool = False) -> None:
        """See the class."""
        super().__init__(channels, mlp_ratio, use_checkpoint=use_checkpoint)


class SparseResBlockC2S3d(SparseChannelToSpatialResBlock3d):
    """Block that doubles the resolution.

    Args:
        channels: channels of the input.
        out_channels: channels of the output; `channels` by default.
        use_checkpoint: whether the block starts with checkpointing enabled.
        pred_subdiv: whether the block predicts which children exist.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int | None = None,
        use_checkpoint: bool = False,
        pred_subdiv: bool = True,
    ) -> None:
        """See the class."""
        super().__init__(
            channels, out_channels, use_checkpoint=use_checkpoint, pred_subdiv=pred_subdiv
        )


class SparseResBlockS2C3d(SparseSpatialToChannelResBlock3d):
    """Block that halves the resolution.

    Args:
        channels: channels of the input.
        out_channels: channels of the output; `channels` by default.
        use_checkpoint: whether the block starts with checkpointing enabled.
    """

    def __init__(
        self, channels: int, out_channels: int | None = None, use_checkpoint: bool = False
    ) -> None:
        """See the class."""
        super().__init__(channels, out_channels, use_checkpoint=use_checkpoint)
