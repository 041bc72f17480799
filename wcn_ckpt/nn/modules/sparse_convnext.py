"""ConvNeXt block on voxels (after Liu et al., "A ConvNet for the 2020s", CVPR 2022)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from wcn_ckpt.checkpointing import GradientCheckpointingMixin
from wcn_ckpt.nn.modules.arguments import check_geometry
from wcn_ckpt.nn.modules.base import G, SpatialModule
from wcn_ckpt.nn.modules.checks import hidden_width
from wcn_ckpt.nn.modules.initialization import zero_module
from wcn_ckpt.nn.modules.normalizations import LayerNorm32
from wcn_ckpt.nn.modules.sparse_conv import SparseConv3d


class SparseConvNeXtBlock3d(GradientCheckpointingMixin, SpatialModule):
    """Convolution, normalization and a network on each voxel, around a shortcut; a boundary.

    `y = x + mlp(norm(conv(x)))`. The convolution is a full one, not one per channel. The last layer
    starts at zero, so a new block is the identity.

    Args:
        channels: channels C of the input and the output.
        mlp_ratio: width of the network as a multiple of C.
        kernel_size: kernel size of the convolution.
        use_checkpoint: whether the block starts with checkpointing enabled.
        conv_cls: class of the convolution, called like `SparseConv3d`.

    Raises:
        TypeError: a number has the wrong type.
        ValueError: a number is not positive, or no channel is left in the network.
    """

    def __init__(
        self,
        channels: int,
        mlp_ratio: float = 4.0,
        kernel_size: int | Sequence[int] = 3,
        use_checkpoint: bool = False,
        conv_cls: type[nn.Module] = SparseConv3d,
    ) -> None:
        """See the class."""
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        hidden = hidden_width(channels, mlp_ratio)
        self.channels = channels
        self.norm = LayerNorm32(channels, elementwise_affine=True, eps=1e-6)
        self.conv = conv_cls(channels, channels, kernel_size, bias=True)
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden), nn.SiLU(), zero_module(nn.Linear(hidden, channels))
        )

    def forward(self, x: G) -> G:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: voxels with C channels.

        Returns:
            The same voxels, C channels.

        Raises:
            TypeError: `x` is not `Voxels`, or its features are not floating point.
            ValueError: it has other channels, or voxels repeat.
        """
        check_geometry(self, x, self.channels)
        out: G = self._gradient_checkpointed_call(self._forward, x)
        return out

    def _forward(self, x: G) -> G:
        h: G = self.conv(x)
        return x + h.replace_features(self.mlp(self.norm(h.feature_tensor)))
