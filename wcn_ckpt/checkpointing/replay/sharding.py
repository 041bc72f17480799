"""Parameters that FSDP2 (`fully_shard`) manages, whose objects change under a boundary.

Inside a boundary that FSDP wraps, the unsharded parameters keep their identity. A module below the
boundary that FSDP wraps holds a sharded parameter at one time and an unsharded one at another, so
neither identity nor version says whether it moved; the version of the sharded one does. Nor is it
watched for writes, or kept: to put a sharded parameter into a replay would break its forward.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn


def _fsdp_module_class() -> type[Any] | None:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return getattr(fsdp, "FSDPModule", None)


def sharded_modules(boundary: nn.Module) -> set[nn.Module]:
    """Modules strictly below `boundary` that FSDP wraps, and everything below those."""
    cls = _fsdp_module_class()
    if cls is None:
        return set()
    units = (m for m in boundary.modules() if m is not boundary and isinstance(m, cls))
    return {module for unit in units for module in unit.modules()}


def modules_cast_by_fsdp(root: nn.Module) -> set[nn.Module]:
    """Modules strictly below `root` whose FSDP unit casts inputs and parameters by its own policy.

    Their parameters have that dtype while they are gathered, and the one that they are stored in at
    other times.
    """
    units: list[Any] = [m for m in sharded_modules(root) if hasattr(m, "_get_fsdp_state")]
    casting = [unit for unit in units if _cast_dtype(unit._get_fsdp_state()) is not None]
    return {module for unit in casting for module in unit.modules()}


def _cast_dtype(state: Any) -> torch.dtype | None:
    dtype: torch.dtype | None = getattr(getattr(state, "_mp_policy", None), "param_dtype", None)
    return dtype


def sharded_parameters(boundary: nn.Module) -> list[Tensor]:
    """The sharded parameters of every FSDP unit at or below `boundary`.

    FSDP has no public way to reach them; where its state looks different, none are returned and
    the guard does not see an optimizer step on them.
    """
    cls = _fsdp_module_class()
    if cls is None:
        return []
    sharded: list[Tensor] = []
    for module in boundary.modules():
        if isinstance(module, cls):
            state = module._get_fsdp_state()
            for group in getattr(state, "_fsdp_param_groups", ()):
                sharded += [parameter.sharded_param for parameter in group.fsdp_params]
    return sharded


def fsdp_in_use() -> bool:
    """Whether FSDP may move the data of a parameter, around a boundary that cannot tell."""
    return _fsdp_module_class() is not None and torch.distributed.is_initialized()
