"""What the attention U-Nets have in common: levels of blocks, and an order for each block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

import torch
from torch import nn

from wcn_ckpt.checkpointing import GradientCheckpointingModelMixin
from wcn_ckpt.geometry import Voxels
from wcn_ckpt.nn.modules.base import SpatialModule
from wcn_ckpt.nn.modules.checks import check_positive

T = TypeVar("T")

Options = Sequence[Any]


class AttentionUNet(GradientCheckpointingModelMixin, SpatialModule):
    """A U-Net whose blocks are told along which order, or in which windows, to attend.

    The order is chosen outside a block, which is a checkpoint boundary, and passed to it: drawn
    from the options of its level with torch's CPU generator, in training and evaluation alike, or
    taken in turn, block after block through encoder and decoder.

    Attributes:
        conv: the stem.
        encs: the blocks of each level, the finest first.
        down_convs: from each level to the next coarser one.
        up_convs: from each level to the next finer one, the coarsest first; called with the
            finer level's output of the encoder too.
        decs: the blocks behind each of them.
        final: behind the last block.
        shuffle_orders: whether orders are drawn.
    """

    conv: nn.Module
    encs: nn.ModuleList
    down_convs: nn.ModuleList
    up_convs: nn.ModuleList
    decs: nn.ModuleList
    final: nn.Module
    shuffle_orders: bool
    _enc_options: Sequence[Options]
    _dec_options: Sequence[Options]

    def forward(self, x: Voxels) -> Voxels:
        """Return features for each voxel.

        In training mode every level needs at least two voxels where batch normalization is used:
        it refuses one value per channel.

        Args:
            x: N voxels with `in_channels` channels.

        Returns:
            The same voxels in the same order.
        """
        turns = count()
        x = self.conv(x)
        skips = []
        for level, blocks in enumerate(self.encs):
            x = self._run(blocks, x, self._enc_options[level], turns)
            if level < len(self.down_convs):
                skips.append(x)
                x = self.down_convs[level](x)
        for step, (up, blocks) in enumerate(zip(self.up_convs, self.decs, strict=True)):
            x = up(x, skips.pop())
            x = self._run(blocks, x, self._dec_options[step], turns)
        out: Voxels = self.final(x)
        return out

    def _run(self, blocks: Any, x: Voxels, options: Options, turns: Iterator[int]) -> Voxels:
        for block in blocks:
            x = block(x, self._choose(options, next(turns)))
        return x

    def _choose(self, options: Sequence[T], turn: int) -> T:
        if self.shuffle_orders:
            turn = int(torch.randint(len(options), (), device="cpu"))
        return options[turn % len(options)]


def check_levels(levels: int, count_name: str, **values: Sequence[Any]) -> None:
    """Check that each sequence has one entry per level, a positive integer; depths may be zero.

    Raises:
        TypeError: an entry is no integer.
        ValueError: a sequence has another length, or an entry is out of range.
    """
    for name, entries in values.items():
        if len(entries) != levels:
            raise ValueError(
                f"{name} needs {levels} entries ({count_name}), got {len(entries)}: "
                f"{tuple(entries)}"
            )
        least = 0 if name.endswith("_depths") else 1
        for entry in entries:
            if entry != 0 or least:
                check_positive(entry, f"every entry of {name}")


def check_options(name: str, options: Sequence[T]) -> tuple[T, ...]:
    """Return the options as a tuple.

    Raises:
        TypeError: they are a single name.
        ValueError: there are none.
    """
    if isinstance(options, str):
        raise TypeError(f"{name} must be a sequence, got the string {options!r}; put it in a list")
    if len(options) == 0:
        raise ValueError(f"{name} must have at least one entry, got {options!r}")
    return tuple(options)
