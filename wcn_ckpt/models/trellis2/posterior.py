"""The latent distribution of an autoencoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Posterior(NamedTuple):
    """A normal distribution per latent channel.

    Attributes:
        mean: mean of each channel.
        logvar: logarithm of the variance of each channel.
    """

    mean: Tensor
    logvar: Tensor

    @classmethod
    def from_channels(cls, parameters: Tensor) -> Posterior:
        """Split dimension 1 into the means and the logarithms of the variances."""
        mean, logvar = parameters.chunk(2, dim=1)
        return cls(mean, logvar)

    def draw(self, sample: bool) -> Tensor:
        """Return the mean, or a sample drawn with torch's generator."""
        if not sample:
            return self.mean
        return self.mean + torch.exp(0.5 * self.logvar) * torch.randn_like(self.mean)
