"""Which running statistics of norm layers a block reads, besides updating them.

In training a norm layer writes its running statistics and computes without them, so what a replay
writes into means nothing. A block may read them all the same: as a factor, in a norm that it
switches to eval mode for a moment. Then a replay needs what its forward found.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from wcn_ckpt.checkpointing.replay.generators import reached_from, referred_by
from wcn_ckpt.checkpointing.replay.kept import EntryState, capture
from wcn_ckpt.checkpointing.replay.kinds import Kind
from wcn_ckpt.checkpointing.replay.redirect import Holder, NormScratch

_Function = Callable[..., Any]

# Position and name of the argument that says whether statistics of the batch are used.
_USES_BATCH: dict[_Function, tuple[int, str]] = {
    F.batch_norm: (5, "training"),
    torch.batch_norm: (5, "training"),
    F.instance_norm: (5, "use_input_stats"),
    torch.instance_norm: (5, "use_input_stats"),
}
_UPDATES = {torch.batch_norm_gather_stats, torch.batch_norm_gather_stats_with_counts}
_LOOKS = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "is_cuda", "layout", "requires_grad")
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point}


class ReadStatistics(TorchFunctionMode):
    """Notes which norm layers have statistics that are read; around one logical forward.

    Args:
        norms: the layers, as they are before the forward. One that does not train then is left to
            the guard: ordinary training refuses as well that its statistics change.
    """

    def __init__(self, norms: Iterable[NormScratch]) -> None:
        super().__init__()
        self._owners: dict[int, NormScratch] = {}
        self._read: dict[NormScratch, None] = {}
        known = [
            entry
            for entry in norms
            if entry.norm.training and not any(map(is_lazy, _statistics(entry.buffers)))
        ]
        for entry in known:
            self._owners |= dict.fromkeys(map(id, _statistics(entry.buffers)), entry)
        kinds = [(entry.buffers, dict.fromkeys(entry.buffers, Kind.IN_PLACE)) for entry in known]
        with torch._C.DisableTorchFunction():  # a boundary around this one may look as well
            self._entries = dict(zip(known, capture(kinds), strict=True))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at the arguments of one function of torch."""
        kwargs = kwargs or {}
        if func not in _LOOKS:
            for index, value in enumerate((*args, *kwargs.values())):
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    entry = self._owners.get(id(tensor))
                    if entry is not None and not _only_updates(func, index, args, kwargs, entry):
                        self._read[entry] = None
        return func(*args, **kwargs)

    def found(self) -> list[tuple[nn.Module, EntryState]]:
        """The layers whose statistics were read, each with them as they were on entry."""
        return [(entry.norm, self._entries[entry]) for entry in self._read]


def _statistics(buffers: Holder) -> list[Tensor]:
    return [tensor for tensor in buffers.values() if tensor is not None]


def _only_updates(
    func: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any], entry: NormScratch
) -> bool:
    """Whether a function that gets a statistic computes nothing from it but an update."""
    if func in _UPDATES:
        return True
    if func in _USES_BATCH:
        position, name = _USES_BATCH[func]
        return bool(args[position] if len(args) > position else kwargs.get(name, False))
    if func is Tensor.__float__:  # the cumulative average divides by the number of updates
        return getattr(entry.norm, "momentum", None) is None
    name = getattr(func, "__name__", "")
    return index == 0 and name.endswith("_") and not name.endswith("__")


def read_statistics(boundary: nn.Module, norms: list[NormScratch]) -> ReadStatistics | None:
    """Return what is to be around a logical forward that is watched, if anything.

    Args:
        boundary: the module that is run. Where it runs compiled code there is nothing around it:
            the compiler would trace that, each time anew.
        norms: layers whose statistics are not known to be read.
    """
    return ReadStatistics(norms) if norms and not _runs_compiled_code(boundary) else None


def _runs_compiled_code(boundary: nn.Module) -> bool:
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    modules = list(boundary.modules())
    return any(map(_is_compiled, modules)) or bool(reached_from(referred_by(modules), _is_compiled))


def _is_compiled(value: Any) -> bool:
    """Whether a module or function was given to `torch.compile`."""
    if isinstance(value, nn.Module):
        return value._compiled_call_impl is not None or hasattr(value, "_orig_mod")
    return (
        isinstance(value, types.FunctionType)
        and hasattr(value, "_torchdynamo_orig_callable")
        and not hasattr(value, "_torchdynamo_disable")
    )
