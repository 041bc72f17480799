"""Models whose checkpoint calls are made by functions that torch's checkpoint decorates.

Torch decorates functions since release 2.14; only tests that ask for it import this module.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.checkpointing.foreign import Model

decorate: Any = checkpoint
"""Typed loosely: older releases declare no decorator."""


class Method(Model):
    @decorate(use_reentrant=False)  # type: ignore[untyped-decorator]
    def checkpointed(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Stored(Model):
    """One decorated layer for each; its argument `scale` by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.functions = [decorate(use_reentrant=False)(layer) for layer in self.layers]

    def checkpointed(self, x: Tensor) -> Tensor:
        for function in self.functions:
            x = function(x, scale=1.0)
        return x


class Unnamed(Model):
    """A decorated function with the module, and a name of torch's own, as keywords."""

    def checkpointed(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = _call(x, module=layer, debug=True)
        return x


@decorate(use_reentrant=False)  # type: ignore[untyped-decorator]
def _call(x: Tensor, *, module: nn.Module, debug: bool) -> Any:
    return module(x, scale=float(debug))


STYLES: list[type[Model]] = [Method, Stored, Unnamed]


class Reentrant(Model):
    @decorate(use_reentrant=True)  # type: ignore[untyped-decorator]
    def checkpointed(self, x: Tensor) -> Any:
        return self.layers[0](x)
