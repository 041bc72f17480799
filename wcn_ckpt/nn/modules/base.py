"""The mark of modules that take and return geometries."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor, nn

from wcn_ckpt.geometry import Geometry

G = TypeVar("G", bound=Geometry)


class SpatialModule(nn.Module):
    """A module whose forward takes a geometry.

    `Sequential` hands a geometry to spatial modules and a feature tensor to all others; derive
    from this class to be handed a geometry.
    """


class FeatureModule(SpatialModule):
    """A spatial module that changes the features of each row and nothing else.

    Subclasses implement `transform`.
    """

    def forward(self, x: G) -> G:
        """Return `x` with transformed features.

        Raises:
            TypeError: `x` is no geometry.
        """
        if not isinstance(x, Geometry):
            raise TypeError(
                f"{type(self).__name__} takes a geometry (Points or Voxels), got "
                f"{type(x).__name__}; on tensors use the torch.nn module"
            )
        return x.replace_features(self.transform(x.feature_tensor))

    def transform(self, features: Tensor) -> Tensor:
        """Return new features (N, C') for features (N, C)."""
        raise NotImplementedError
