"""State that is known without watching a forward: classes that are known to write their buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

_Norm = TypeVar("_Norm", bound=type[nn.Module])

NORM_SETTINGS = ("momentum", "track_running_stats")
"""Attributes of a norm layer that say how a training forward updates its statistics."""

norm_settings = attrgetter(*NORM_SETTINGS)
"""Returns them."""

_WRITTEN_NOT_READ: set[type[nn.Module]] = {
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LazyBatchNorm1d,
    nn.LazyBatchNorm2d,
    nn.LazyBatchNorm3d,
    nn.LazyInstanceNorm1d,
    nn.LazyInstanceNorm2d,
    nn.LazyInstanceNorm3d,
}


def written_not_read(norm: _Norm) -> _Norm:
    """Class decorator: a training forward writes the running statistics and never reads them."""
    _WRITTEN_NOT_READ.add(norm)
    return norm


def frozen_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a module itself that are not trained: a forward may keep state in one."""
    return {
        name: parameter
        for name, parameter in module._parameters.items()
        if parameter is not None and not parameter.requires_grad
    }


def only_writes_statistics(module: nn.Module) -> bool:
    """Whether a module is one of torch's own norm layers or of ours, with its own forward.

    In training these write their running statistics and their output never depends on them. A
    subclass may read them.
    """
    return type(module) in _WRITTEN_NOT_READ and "forward" not in vars(module)


def statistics_read_by_parents(modules: Iterable[nn.Module]) -> set[nn.Module]:
    """Norm layers inside the fused layers of torch's quantisation-aware training.

    Those scale their convolution by the running variance of the norm that they hold.
    """
    return {
        child
        for module in modules
        if type(module).__module__.startswith("torch.ao.nn.intrinsic.qat")
        for child in module._modules.values()
        if child is not None
    }


def is_norm_layer(module: nn.Module) -> bool:
    """Whether a module is of the norm family."""
    return isinstance(module, _NormBase)


def has_running_statistics(module: nn.Module) -> bool:
    """Whether a module is of the norm family and holds running statistics."""
    return isinstance(module, _NormBase) and module._buffers.get("running_mean") is not None


def known_state(module: nn.Module) -> list[str]:
    """Names of buffers that a training forward of this module reads and writes.

    Subclasses of the norm layers, spectral norm in both of torch's forms, observers and fake
    quantisation.
    """
    if isinstance(module, (_NormBase, _SpectralNorm)) or _is_quantisation_observer(module):
        return list(module._buffers)
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            return [f"{hook.name}_u", f"{hook.name}_v"]
    return []


def has_read_state(boundary: nn.Module) -> bool:
    """Whether a module below is known to read and write its buffers; Dynamo can trace this."""
    for module in boundary.modules():
        if isinstance(module, _SpectralNorm):
            return True
        if isinstance(module, _NormBase) and type(module) not in _WRITTEN_NOT_READ:
            return True
    return False


def has_unknown_state(boundary: nn.Module) -> bool:
    """Whether a module below that is no norm layer has a buffer; Dynamo can trace this."""
    return any(
        len(module._buffers) > 0 and type(module) not in _WRITTEN_NOT_READ
        for module in boundary.modules()
    )


def _is_quantisation_observer(module: nn.Module) -> bool:
    observer = sys.modules.get("torch.ao.quantization.observer")
    fake_quantize = sys.modules.get("torch.ao.quantization.fake_quantize")
    return (observer is not None and isinstance(module, observer.ObserverBase)) or (
        fake_quantize is not None and isinstance(module, fake_quantize.FakeQuantizeBase)
    )
