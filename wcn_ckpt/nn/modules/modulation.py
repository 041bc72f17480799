"""Adaptive layer norm: a vector per sample shifts, scales and gates what a block computes.

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from wcn_ckpt.nn.modules.arguments import check_tensor
from wcn_ckpt.nn.modules.sparse_conv import check_positive

NUM_PARTS = 6


class Modulation(NamedTuple):
    """The six vectors of a block, each of the shape that broadcasts over its rows."""

    shift_msa: Tensor
    scale_msa: Tensor
    gate_msa: Tensor
    shift_mlp: Tensor
    scale_mlp: Tensor
    gate_mlp: Tensor


class ModulatedModule(nn.Module):
    """A block that is modulated.

    Either it owns the layer that makes the six vectors from a conditioning vector
    (`adaLN_modulation`), or a container owns that layer and the block adds a learned offset
    (`modulation`).

    Args:
        channels: channels C of the block.
        share_mod: whether the layer is the container's.

    Raises:
        TypeError: `channels` is no integer.
        ValueError: `channels` is not positive.
    """

    def __init__(self, channels: int, share_mod: bool) -> None:
        """See the class."""
        super().__init__()
        check_positive(channels, "channels")
        self.channels = channels
        self.share_mod = share_mod
        if share_mod:
            self.modulation = nn.Parameter(torch.randn(NUM_PARTS * channels) / channels**0.5)
        else:
            self.adaLN_modulation = modulation_layer(channels)

    def check_mod(self, mod: Tensor, batch_size: int) -> None:
        """Check the conditioning, (B, C), or (B, 6 C) with `share_mod`.

        Raises:
            TypeError: it is no floating point tensor.
            ValueError: it has another shape.
        """
        width = NUM_PARTS * self.channels if self.share_mod else self.channels
        check_tensor(self, mod, (batch_size, width), "mod")

    def six_vectors(self, mod: Tensor) -> Tensor:
        """Return (B, 6 C): shift, scale and gate for attention, then for the network."""
        if self.share_mod:
            return (self.modulation + mod).to(mod.dtype)
        six: Tensor = self.adaLN_modulation(mod)
        return six


def modulation_layer(channels: int) -> nn.Sequential:
    """Return the layer that makes six vectors of C channels from one."""
    return nn.Sequential(nn.SiLU(), nn.Linear(channels, NUM_PARTS * channels))


def modulate(rows: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Return `rows * (1 + scale) + shift`."""
    return rows * (1 + scale) + shift
