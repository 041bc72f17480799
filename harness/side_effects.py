"""What a step leaves behind besides tensors: Python attributes, bindings, generators and modes.

A replay that only appends to a list, or binds a clone where a buffer was, changes no number of the
step it is in. Both arms are looked at in the same way, so whatever the step itself does is no
difference.
"""

from __future__ import annotations

import math
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harness.walking import dotted_modules
from wcn_ckpt.nn.modules import GradientCheckpointingMixin

LEFT_OUT = frozenset(vars(nn.Module())) | frozenset(dir(GradientCheckpointingMixin))
"""Attributes of modules that belong to torch, and to boundaries of wcn_ckpt."""
_SCALARS = (bool, int, float, str, type(None))
_CONTAINERS = (list, tuple, dict, set, deque)
_MOST_ITEMS = 64
_DEVICES = ("cpu", "cuda")


class _Tensor(NamedTuple):
    tensor: Tensor
    version: int


class SideEffects:
    """Watches a module from one moment on.

    Args:
        module: The module, as it is before the first step.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = self._frozen_attributes()
        self._tensors = dict(_tensors(module))

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Take what is written to attributes inside for the lab's own, and no effect of a step."""
        before = self._frozen_attributes()
        yield
        for path, values in self._frozen_attributes().items():
            for name, value in values.items():
                earlier = before.get(path, {})
                if name not in earlier or _moved(earlier[name], value):
                    self._attributes.setdefault(path, {})[name] = value

    def _frozen_attributes(self) -> dict[str, dict[str, Any]]:
        return {
            path: {name: _frozen(value) for name, value in _observed(child)}
            for path, child in dotted_modules(self._module)
        }

    def attributes(self) -> dict[str, Any]:
        """Return the Python attributes of all submodules that have changed, by path.

        Numbers and texts stand as they are, tensors as copies, containers as a description.
        """
        changed: dict[str, Any] = {}
        for path, child in dotted_modules(self._module):
            first = self._attributes.get(path, {})
            for name, value in _observed(child):
                frozen = _frozen(value)
                if name not in first or _moved(first[name], frozen):
                    changed[f"{path}{name}"] = _told(frozen)
        return changed

    def rebound(self) -> dict[str, bool]:
        """Return the paths of parameters and buffers whose place another tensor has taken."""
        first = self._tensors
        return {
            path: True
            for path, tensor in _tensors(self._module)
            if first.get(path, tensor) is not tensor
        }

    def generators(self) -> dict[str, str]:
        """Digest the random generators among the attributes; comparable within one process."""
        return {
            f"generator {path}{child}": state
            for path, module in dotted_modules(self._module)
            for child, value in vars(module).items()
            if _may_be_generator(value.__class__) and (state := _generator_state(value)) is not None
        }


def modes() -> dict[str, Any]:
    """Return the modes of this thread that a step must leave as it found them."""
    return {
        "autocast nesting": _autocast_nesting(),
        **{f"autocast {device}": torch.is_autocast_enabled(device) for device in _DEVICES},
        "grad mode": torch.is_grad_enabled(),
    }


def reset_modes() -> None:
    """Put the modes back that an arm left behind, so that the next run starts without them."""
    for _ in range(_autocast_nesting()):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    for device in _DEVICES:
        torch.set_autocast_enabled(device, False)
    torch.set_grad_enabled(True)


def _autocast_nesting() -> int:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return nesting


def _observed(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name not in LEFT_OUT and _is_observed(value.__class__):
            yield name, value


# Telling what a value is by its type, once for each type: asking each value at each point would
# take longer than the forward of a small block.
@cache
def _is_observed(kind: type) -> bool:
    return issubclass(kind, (*_SCALARS, *_CONTAINERS, Tensor))


@cache
def _may_be_generator(kind: type) -> bool:
    return not issubclass(kind, (*_SCALARS, *_CONTAINERS, Tensor, nn.Module))


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, child in dotted_modules(module, remove_duplicate=False):
        for holder in (child._parameters, child._buffers):
            for name, tensor in holder.items():
                if tensor is not None:
                    yield prefix + name, tensor


def _frozen(value: Any) -> Any:
    if type(value) in _SCALARS and type(value) is not float:
        return value
    if isinstance(value, Tensor):
        return _Tensor(value, 0 if value.is_inference() else value._version)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return _described(value) if isinstance(value, _CONTAINERS) else value


def _described(value: Any) -> str:
    """Describe a container by its length, and by its items where they are few plain values."""
    items = list(value.items()) if isinstance(value, Mapping) else list(value)
    flat = [part for item in items for part in (item if isinstance(item, tuple) else (item,))]
    kind = f"{type(value).__name__} of {len(items)}"
    if len(flat) > _MOST_ITEMS or not all(isinstance(part, _SCALARS) for part in flat):
        return kind
    return f"{kind}: {sorted(map(repr, flat)) if isinstance(value, set) else flat}"


def _moved(before: Any, after: Any) -> bool:
    if isinstance(before, _Tensor) and isinstance(after, _Tensor):
        return before.tensor is not after.tensor or before.version != after.version
    return type(before) is not type(after) or bool(before != after)


def _told(value: Any) -> Any:
    return value.tensor.detach().clone() if isinstance(value, _Tensor) else value


def _generator_state(value: Any) -> str | None:
    numpy = sys.modules.get("numpy")
    state: Any
    if isinstance(value, torch.Generator):
        state = value.get_state().numpy().tobytes()
    elif isinstance(value, random.Random):
        state = value.getstate()
    elif numpy is not None and isinstance(value, numpy.random.Generator):
        state = repr(value.bit_generator.state)
    elif numpy is not None and isinstance(value, numpy.random.RandomState):
        state = repr(value.get_state())
    else:
        return None
    return f"{hash(state) & ((1 << 64) - 1):016x}"
