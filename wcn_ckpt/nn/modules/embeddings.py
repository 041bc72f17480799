"""Embeddings of positions and of diffusion times."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from wcn_ckpt.nn.functional.rotary import rotary_frequencies, rotary_phases
from wcn_ckpt.nn.modules.arguments import check_tensor
from wcn_ckpt.nn.modules.sparse_conv import check_positive

SINUSOIDAL_BASE = 10000.0


class RotaryPositionEmbedder(nn.Module):
    """Phases that encode coordinates in attention heads (Su et al., "RoFormer", 2021).

    It has no parameters and no buffers.

    Args:
        head_dim: channels of a head; even.
        dim: number of coordinates.
        rope_freq: the highest frequency, and the base by whose powers the others fall.

    Raises:
        ValueError: `head_dim` is odd, or a number is not positive.
    """

    def __init__(
        self, head_dim: int, dim: int = 3, rope_freq: tuple[float, float] = (1.0, 10000.0)
    ) -> None:
        """See the class."""
        super().__init__()
        self.head_dim, self.dim, self.rope_freq = head_dim, dim, tuple(rope_freq)
        self.freqs = rotary_frequencies(head_dim, dim, rope_freq)

    def forward(self, coordinates: Tensor) -> Tensor:
        """Return phases (..., head_dim / 2), complex64, for coordinates (..., dim).

        Raises:
            ValueError: the last dimension is not `dim`.
        """
        if coordinates.ndim == 0 or coordinates.shape[-1] != self.dim:
            raise ValueError(
                f"coordinates must have shape (..., {self.dim}), got {tuple(coordinates.shape)}"
            )
        return rotary_phases(coordinates, self.freqs, self.head_dim // 2)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"head_dim={self.head_dim}, dim={self.dim}, rope_freq={self.rope_freq}"


class SinusoidalPositionEmbedder(nn.Module):
    """Sines and cosines of each coordinate (Vaswani et al., "Attention is all you need", 2017).

    Channels: for each axis F sines, then F cosines, with F = channels // in_channels // 2 and the
    frequencies `10000 ** (-j / F)`; zeros fill up what is left.

    Args:
        channels: channels of the embedding.
        in_channels: number of coordinates.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive.
    """

    def __init__(self, channels: int, in_channels: int = 3) -> None:
        """See the class."""
        super().__init__()
        check_positive(channels, "channels")
        check_positive(in_channels, "in_channels")
        self.channels, self.in_channels = channels, in_channels
        count = channels // in_channels // 2
        exponents = torch.arange(count, dtype=torch.float64, device="cpu") / max(count, 1)
        self.freqs = SINUSOIDAL_BASE**-exponents

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings (N, channels) for coordinates (N, in_channels).

        They have the dtype of the coordinates, and at least float32.

        Raises:
            TypeError: the coordinates are not floating point.
            ValueError: they have another shape.
        """
        check_tensor(self, x, ("N", self.in_channels))
        angles = x.double().unsqueeze(-1) * self.freqs.to(x.device)
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)
        padded = nn.functional.pad(waves, (0, self.channels - waves.shape[1]))
        return padded.to(torch.promote_types(x.dtype, torch.float32))


class TimestepEmbedder(nn.Module):
    """Embeds diffusion times: cosines and sines, then a network of two layers.

    Args:
        hidden_size: channels of the embedding.
        frequency_embedding_size: number of cosines and sines; even.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or the number of waves is odd.
    """

    def __init__(self, hidden_size: int, frequency_embedding_size: int = 256) -> None:
        """See the class."""
        super().__init__()
        check_positive(hidden_size, "hidden_size")
        check_positive(frequency_embedding_size, "frequency_embedding_size")
        if frequency_embedding_size % 2:
            raise ValueError(
                f"frequency_embedding_size must be even, got {frequency_embedding_size}"
            )
        half = frequency_embedding_size // 2
        steps = torch.arange(half, dtype=torch.float64, device="cpu")
        self.freqs = torch.exp(-math.log(10000) * steps / half)
        self.mlp = nn.Sequential(
            nn.Linear(frequency_embedding_size, hidden_size),
            nn.SiLU(),
            nn.Linear(hidden_size, hidden_size),
        )

    def forward(self, t: Tensor) -> Tensor:
        """Return embeddings (B, hidden_size) for times (B,), integers or not.

        Raises:
            ValueError: `t` is not one-dimensional.
        """
        if t.ndim != 1:
            raise ValueError(f"t must have shape (B,), one time per sample, got {tuple(t.shape)}")
        angles = t.double().unsqueeze(-1) * self.freqs.to(t.device)
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
        out: Tensor = self.mlp(waves.to(next(self.mlp.parameters()).dtype))
        return out
