"""A chain of modules, some on geometries and some on their features."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

from torch import Tensor, nn

from wcn_ckpt.geometry import Geometry
from wcn_ckpt.nn.modules.base import SpatialModule


class Sequential(nn.Sequential, SpatialModule):
    """Runs modules one after another on a geometry.

    A `SpatialModule` is given the geometry. Any other module is given the feature tensor (N, C),
    and what it returns becomes the features of the last geometry before the next spatial module
    and at the end.
    """

    def forward(self, x: Geometry) -> Any:
        """Run the chain.

        Args:
            x: points or voxels.

        Returns:
            A geometry.

        Raises:
            TypeError: `x` is no geometry.
        """
        _check_geometry(self, x)
        chain = _Chain(x)
        for module in self:
            chain.run(module)
        return chain.geometry()

    def __getitem__(self, index: Any) -> Any:
        """Return one module, or a plain `Sequential` of the modules in a slice, names kept."""
        if isinstance(index, slice):
            return Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)


class TupleSequential(Sequential):
    """A chain in which one module takes further arguments.

    Args:
        modules: the modules.
        tuple_layer: number of the module that is called as `module(x, *rest)`.

    Raises:
        TypeError: the number is no integer.
        ValueError: there is no such module.
    """

    def __init__(self, *modules: nn.Module, tuple_layer: int) -> None:
        """See the class."""
        super().__init__(*modules)
        if not isinstance(tuple_layer, int) or isinstance(tuple_layer, bool):
            raise TypeError(f"tuple_layer must be the number of a module, got {tuple_layer!r}")
        if not 0 <= tuple_layer < len(self):
            raise ValueError(
                f"tuple_layer must be one of the {len(self)} modules, got {tuple_layer}"
            )
        self.tuple_layer = tuple_layer

    def forward(self, x: Geometry, *rest: Any) -> Any:
        """Run the chain; `rest` goes to the chosen module.

        Raises:
            TypeError: `x` is no geometry.
        """
        _check_geometry(self, x)
        chain = _Chain(x)
        for place, module in enumerate(self):
            chain.run(module, *(rest if place == self.tuple_layer else ()))
        return chain.geometry()


class _Chain:
    """The value that travels through a chain, and the geometry that its rows belong to."""

    def __init__(self, x: Geometry) -> None:
        self._last = x
        self._value: Geometry | Tensor = x

    def geometry(self) -> Geometry:
        """Return the value as a geometry."""
        if not isinstance(self._value, Geometry):
            self._value = self._last.replace_features(self._value)
        return self._value

    def run(self, module: nn.Module, *rest: Any) -> None:
        """Pass the value through one module."""
        if isinstance(module, SpatialModule):
            self._value = module(self.geometry(), *rest)
            return
        if isinstance(self._value, Geometry):
            self._last, self._value = self._value, self._value.feature_tensor
        self._value = cast("Geometry | Tensor", module(self._value, *rest))


def _check_geometry(module: nn.Module, x: object) -> None:
    if not isinstance(x, Geometry):
        raise TypeError(
            f"{type(module).__name__} takes a geometry (Points or Voxels), got {type(x).__name__}; "
            "for tensors use torch.nn.Sequential"
        )
