"""MinkUNet: a sparse U-Net of residual blocks.

Christopher Choy, JunYoung Gwak, Silvio Savarese: "4D Spatio-Temporal ConvNets: Minkowski
Convolutional Neural Networks", CVPR 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from wcn_ckpt.checkpointing import GradientCheckpointingModelMixin
from wcn_ckpt.geometry import Voxels, cat
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.mink_blocks import BasicBlock, BottleneckBlock, ConvBlock, ConvTrBlock
from wcn_ckpt.nn.modules.sparse_conv import SparseConv3d, check_positive

__all__ = [
    "BasicBlock",
    "BottleneckBlock",
    "ConvBlock",
    "ConvTrBlock",
    "MinkUNet14",
    "MinkUNet18",
    "MinkUNet34",
    "MinkUNet50",
    "MinkUNet101",
    "MinkUNetBase",
]

NUM_STAGES = 8


class MinkUNetBase(GradientCheckpointingModelMixin, SpatialModule):
    """Four stages down to a sixteenth of the resolution, four up again, with skips.

    Every residual block is a checkpoint boundary; convolutions between stages are not.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        planes: width of each of the eight stages.
        layers: number of residual blocks in each of the eight stages; 0 gives one block, as 1 does.
        init_dim: width of the stem.
        BLOCK: class of the residual blocks, called as `BLOCK(in_channels, out_channels)`.
        init_kernel_size: kernel size of the stem.
        use_checkpoint: whether the blocks start with checkpointing enabled.

    Attributes:
        PLANES: `planes` as given.
        LAYERS: `layers` as given.
        INIT_DIM: `init_dim` as given.

    Raises:
        TypeError: `BLOCK` is not a class of modules, a size is no integer, or an argument is
            unknown.
        ValueError: `planes` or `layers` does not have eight entries, or a size is not positive.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        planes: Sequence[int],
        layers: Sequence[int],
        init_dim: int = 32,
        BLOCK: type[nn.Module] = BasicBlock,
        init_kernel_size: int = 1,
        use_checkpoint: bool = False,
    ) -> None:
        """See the class."""
        super().__init__()
        _check_stages(planes, layers)
        check_positive(init_dim, "init_dim")
        if not (isinstance(BLOCK, type) and issubclass(BLOCK, nn.Module)):
            raise TypeError(f"BLOCK must be a class such as BasicBlock, got {BLOCK!r}")
        self.PLANES, self.LAYERS, self.INIT_DIM = planes, layers, init_dim

        def stage(index: int, width: int) -> nn.Sequential:
            """Return the blocks of a stage that is given `width` channels."""
            out, count = planes[index], layers[index]
            widths = [width] + [out] * (count - 1)
            return nn.Sequential(*(BLOCK(have, out) for have in widths))

        self.conv0 = ConvBlock(in_channels, init_dim, init_kernel_size)
        self.conv1 = ConvBlock(init_dim, init_dim, 2, 2)
        self.block1 = stage(0, init_dim)
        self.conv2 = ConvBlock(planes[0], planes[0], 2, 2)
        self.block2 = stage(1, planes[0])
        self.conv3 = ConvBlock(planes[1], planes[1], 2, 2)
        self.block3 = stage(2, planes[1])
        self.conv4 = ConvBlock(planes[2], planes[2], 2, 2)
        self.block4 = stage(3, planes[2])

        self.convtr4 = ConvTrBlock(planes[3], planes[4], 2, 2)
        self.block5 = stage(4, planes[4] + planes[2])
        self.convtr5 = ConvTrBlock(planes[4], planes[5], 2, 2)
        self.block6 = stage(5, planes[5] + planes[1])
        self.convtr6 = ConvTrBlock(planes[5], planes[6], 2, 2)
        self.block7 = stage(6, planes[6] + planes[0])
        self.convtr7 = ConvTrBlock(planes[6], planes[7], 2, 2)
        self.block8 = stage(7, planes[7] + init_dim)
        self.final = SparseConv3d(planes[7], out_channels, 1)

        if use_checkpoint:
            self.gradient_checkpointing_enable()

    def forward(self, x: Voxels) -> Voxels:
        """Return features for each voxel.

        In training mode every level needs at least two voxels: batch normalization refuses one
        value per channel.

        Args:
            x: N voxels with `in_channels` channels.

        Returns:
            The same voxels in the same order, with `out_channels` channels.

        Raises:
            TypeError: `x` is not `Voxels`.
            ValueError: the number of channels is another one, voxels repeat, or a level has a
                single voxel in training mode.
        """
        if not isinstance(x, Voxels):
            raise TypeError(
                f"{type(self).__name__} takes Voxels, got {type(x).__name__}; "
                "points become voxels with Points.to_voxels(voxel_size)"
            )
        skip0 = self.conv0(x)
        skip1 = self.block1(self.conv1(skip0))
        skip2 = self.block2(self.conv2(skip1))
        skip3 = self.block3(self.conv3(skip2))
        out = self.block4(self.conv4(skip3))
        out = self.block5(cat(self.convtr4(out, skip3), skip3))
        out = self.block6(cat(self.convtr5(out, skip2), skip2))
        out = self.block7(cat(self.convtr6(out, skip1), skip1))
        out = self.block8(cat(self.convtr7(out, skip0), skip0))
        result: Voxels = self.final(out)
        return result


class _NamedMinkUNet(MinkUNetBase):
    """A MinkUNet of a published depth."""

    BLOCK: ClassVar[type[nn.Module]] = BasicBlock
    DEPTHS: ClassVar[tuple[int, ...]]

    def __init__(self, in_channels: int, out_channels: int, **kwargs: Any) -> None:
        """Build the model.

        Args:
            in_channels: channels of the input.
            out_channels: channels of the output.
            **kwargs: `init_kernel_size` and `use_checkpoint` of `MinkUNetBase`.
        """
        super().__init__(
            in_channels,
            out_channels,
            planes=(32, 64, 128, 256, 256, 128, 96, 96),
            layers=self.DEPTHS,
            init_dim=32,
            BLOCK=self.BLOCK,
            **kwargs,
        )


class MinkUNet14(_NamedMinkUNet):
    """One basic block per stage: 8 boundaries."""

    DEPTHS = (1, 1, 1, 1, 1, 1, 1, 1)


class MinkUNet18(_NamedMinkUNet):
    """Two basic blocks per stage: 16 boundaries."""

    DEPTHS = (2, 2, 2, 2, 2, 2, 2, 2)


class MinkUNet34(_NamedMinkUNet):
    """Basic blocks, more of them on the way down: 23 boundaries."""

    DEPTHS = (2, 3, 4, 6, 2, 2, 2, 2)


class MinkUNet50(_NamedMinkUNet):
    """MinkUNet34 with bottleneck blocks: 23 boundaries."""

    BLOCK = BottleneckBlock
    DEPTHS = (2, 3, 4, 6, 2, 2, 2, 2)


class MinkUNet101(_NamedMinkUNet):
    """Bottleneck blocks, 23 of them at the coarsest level: 40 boundaries."""

    BLOCK = BottleneckBlock
    DEPTHS = (2, 3, 4, 23, 2, 2, 2, 2)


def _check_stages(planes: Sequence[int], layers: Sequence[int]) -> None:
    for name, values in (("planes", planes), ("layers", layers)):
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise TypeError(f"{name} must be a sequence of {NUM_STAGES} integers, got {values!r}")
        if len(values) != NUM_STAGES:
            raise ValueError(
                f"{name} needs one entry for each of the {NUM_STAGES} stages, got {list(values)}"
            )
        for value in values:
            # A stage without layers still has the block that brings it to its width.
            check_positive(value, f"every entry of {name}", allow_zero=name == "layers")
