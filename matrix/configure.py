"""Functions that apply an axis value to a newly built subject, in place."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def bn_momentum(module: nn.Module, momentum: float | None) -> None:
    """Set the momentum of every BatchNorm in ``module``.

    Args:
        module: The subject.
        momentum: Weight of the newest batch; None for the cumulative average.
    """
    for norm in _batch_norms(module):
        norm.momentum = momentum


def running_stats(module: nn.Module, keep: bool) -> None:
    """Leave every BatchNorm as built, or as if built with ``track_running_stats=False``.

    Args:
        module: The subject.
        keep: Whether running statistics are kept.
    """
    if keep:
        return
    for norm in _batch_norms(module):
        norm.track_running_stats = False
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            norm.register_buffer(name, None)


def _batch_norms(module: nn.Module) -> list[_BatchNorm]:
    return [child for child in module.modules() if isinstance(child, _BatchNorm)]
