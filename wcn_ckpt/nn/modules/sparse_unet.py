"""Residual blocks that change the resolution of voxels by packing children into channels.

The blocks of the sparse variational autoencoder of TRELLIS.2. Each is a checkpoint boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from wcn_ckpt.checkpointing import GradientCheckpointingMixin
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.functional.resampling import (
    Children,
    active_children,
    check_same_sites,
    remembered_children,
)
from wcn_ckpt.nn.modules.arguments import check_voxels
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.initialization import zero_module
from wcn_ckpt.nn.modules.normalizations import LayerNorm32
from wcn_ckpt.nn.modules.sparse_conv import SparseConv3d, check_positive
from wcn_ckpt.nn.modules.sparse_resample import SparseChannel2Spatial, SparseSpatial2Channel
from wcn_ckpt.nn.modules.sparse_unet_stages import (
    SparseUNetDecoderStages,
    SparseUNetEncoderStages,
)

__all__ = [
    "SparseChannelToSpatialResBlock3d",
    "SparseSpatialToChannelResBlock3d",
    "SparseUNetDecoderStages",
    "SparseUNetEncoderStages",
]

NORM_EPS = 1e-6

NormClass = Callable[..., nn.Module]


class SparseChannelToSpatialResBlock3d(GradientCheckpointingMixin, SpatialModule):
    """Goes from voxels to their children, which are given or predicted; a checkpoint boundary.

    Channels become children: `h = conv2(silu(norm2(c2s(conv1(silu(norm1(x)))))))`, and
    `y = h + repeat(c2s(x))`. The second convolution starts at zero.

    Which children exist is settled before the boundary and passed into it, so a replay works on
    the same voxels as its forward.

    Args:
        channels: channels of the input, divisible by `factor ** 3`.
        out_channels: channels of the output; `channels` by default.
        factor: children per voxel along each axis.
        use_checkpoint: whether the block starts with checkpointing enabled.
        pred_subdiv: whether the block predicts which children exist, with the layer `to_subdiv`.
        conv_cls: class of the convolutions, called like `SparseConv3d`.
        norm_cls: class of the normalizations, called like `LayerNorm32`.
        kernel_size: kernel size of the convolutions.

    Raises:
        TypeError: a number is no integer.
        ValueError: a number is not positive or not divisible.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int | None = None,
        factor: int = 2,
        use_checkpoint: bool = False,
        pred_subdiv: bool = True,
        conv_cls: type[nn.Module] = SparseConv3d,
        norm_cls: NormClass = LayerNorm32,
        kernel_size: int | Sequence[int] = 3,
    ) -> None:
        """See the class."""
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        out = channels if out_channels is None else out_channels
        children = _check_sizes(channels, out, factor)
        if channels % children:
            raise ValueError(
                f"channels={channels} must be divisible by factor ** 3 = {children}, so that each "
                "child gets as many"
            )
        if out % (channels // children):
            raise ValueError(
                f"out_channels={out} must be divisible by the {channels // children} channels of a "
                f"child (channels={channels} / factor ** 3), which the shortcut repeats"
            )
        self.channels, self.out_channels, self.factor = channels, out, factor
        self.pred_subdiv = pred_subdiv
        self.norm1 = norm_cls(channels, elementwise_affine=True, eps=NORM_EPS)
        self.norm2 = norm_cls(out, elementwise_affine=False, eps=NORM_EPS)
        self.conv1 = conv_cls(channels, out * children, kernel_size, bias=True)
        self.conv2 = zero_module(conv_cls(out, out, kernel_size, bias=True))
        if pred_subdiv:
            self.to_subdiv = nn.Linear(channels, children)
        self.updown = SparseChannel2Spatial(factor)

    def forward(self, x: Voxels, subdiv: Voxels | None = None) -> Voxels | tuple[Voxels, Voxels]:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: M voxels with `channels` channels.
            subdiv: voxels with the same rows and one value per child, (M, factor ** 3); a child
                exists where it is above 0. Without effect when the block predicts it. Without,
                the children are those that `SparseSpatial2Channel` packed.

        Returns:
            The children, `out_channels` channels; there may be none. With `pred_subdiv` also the
            logits, voxels (M, factor ** 3). Only a loss on the logits trains `to_subdiv`: there is
            no gradient through the choice.

        Raises:
            TypeError: an argument is not `Voxels`.
            ValueError: channels or rows do not fit, or no children are known.
        """
        check_voxels(self, x, self.channels)
        if self.pred_subdiv:
            logits = x.replace_features(self.to_subdiv(x.feature_tensor))
            return self._gradient_checkpointed_call(self._forward, x, logits), logits
        chosen: Voxels | Children
        if subdiv is None:
            chosen = remembered_children(x, self.factor)
        else:
            check_same_sites(x, subdiv, "subdiv")
            chosen = subdiv
        out: Voxels = self._gradient_checkpointed_call(self._forward, x, chosen)
        return out

    def _forward(self, x: Voxels, subdiv: Voxels | Children) -> Voxels:
        if isinstance(subdiv, Voxels):
            active = subdiv.batched_features.tensor.detach() > 0
            children = active_children(x, active, self.factor)
        else:
            children = subdiv
        h = self.updown(self.conv1(_activated(x, self.norm1)), children)
        h = self.conv2(_activated(h, self.norm2))
        skip = self.updown(x, children).feature_tensor
        repeats = self.out_channels // skip.shape[1]
        return _shortcut(h, skip.repeat_interleave(repeats, dim=1))


class SparseSpatialToChannelResBlock3d(GradientCheckpointingMixin, SpatialModule):
    """Goes from voxels to their parents; a checkpoint boundary.

    Children become channels: `h = conv2(silu(norm2(s2c(conv1(silu(norm1(x)))))))`, and
    `y = h + mean(s2c(x))` over groups of consecutive channels, in which children that do not exist
    count as zeros. The second convolution starts at zero.

    Args:
        channels: channels of the input.
        out_channels: channels of the output, divisible by `factor ** 3`; `channels` by default.
        factor: children per voxel along each axis.
        use_checkpoint: whether the block starts with checkpointing enabled.
        conv_cls: class of the convolutions, called like `SparseConv3d`.
        norm_cls: class of the normalizations, called like `LayerNorm32`.
        kernel_size: kernel size of the convolutions.

    Raises:
        TypeError: a number is no integer.
        ValueError: a number is not positive or not divisible.
    """

    def __init__(
        self,
        channels: int,
        out_channels: int | None = None,
        factor: int = 2,
        use_checkpoint: bool = False,
        conv_cls: type[nn.Module] = SparseConv3d,
        norm_cls: NormClass = LayerNorm32,
        kernel_size: int | Sequence[int] = 3,
    ) -> None:
        """See the class."""
        super().__init__()
        self._init_gradient_checkpointing(use_checkpoint)
        out = channels if out_channels is None else out_channels
        children = _check_sizes(channels, out, factor)
        if out % children:
            raise ValueError(
                f"out_channels={out} must be divisible by factor ** 3 = {children}, so that each "
                "child gets as many"
            )
        if channels * children % out:
            raise ValueError(
                f"the {channels * children} packed channels (channels={channels} * factor ** 3) "
                f"must be divisible by out_channels={out}, into which the shortcut averages them"
            )
        self.channels, self.out_channels, self.factor = channels, out, factor
        self.norm1 = norm_cls(channels, elementwise_affine=True, eps=NORM_EPS)
        self.norm2 = norm_cls(out, elementwise_affine=False, eps=NORM_EPS)
        self.conv1 = conv_cls(channels, out // children, kernel_size, bias=True)
        self.conv2 = zero_module(conv_cls(out, out, kernel_size, bias=True))
        self.updown = SparseSpatial2Channel(factor)

    def forward(self, x: Voxels) -> Voxels:
        """Run the block, recomputing it in backward when checkpointing is active.

        Args:
            x: voxels with `channels` channels.

        Returns:
            Their parents, `out_channels` channels, sorted by `(cloud, x, y, z)`; they remember
            their children.

        Raises:
            TypeError: `x` is not `Voxels`, or its features are not floating point.
            ValueError: it has other channels, or voxels repeat.
        """
        check_voxels(self, x, self.channels)
        out: Voxels = self._gradient_checkpointed_call(self._forward, x)
        return out

    def _forward(self, x: Voxels) -> Voxels:
        h = self.updown(self.conv1(_activated(x, self.norm1)))
        h = self.conv2(_activated(h, self.norm2))
        packed = self.updown(x).feature_tensor
        group = packed.shape[1] // self.out_channels
        skip = packed.reshape(len(packed), self.out_channels, group).mean(dim=2)
        return _shortcut(h, skip)


def _check_sizes(channels: int, out_channels: int, factor: int) -> int:
    """Check the sizes of a block and return the number of children per voxel."""
    for name, value in (
        ("channels", channels),
        ("out_channels", out_channels),
        ("factor", factor),
    ):
        check_positive(value, name)
    return factor**3


def _activated(x: Voxels, norm: nn.Module) -> Voxels:
    return x.replace_features(F.silu(norm(x.feature_tensor)))


def _shortcut(h: Voxels, skip: Tensor) -> Voxels:
    return h.replace_features(h.feature_tensor + skip)
