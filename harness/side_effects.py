"""What a step leaves behind besides tensors: Python attributes, bindings and generators.

A replay that only appends to a list, or binds a clone where a buffer was, changes no number of the
step it is in. Both arms are looked at in the same way, so whatever the step itself does is no
difference.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from harness.attributes import has_moved, held, told
from harness.walking import dotted_modules


class SideEffects:
    """Watches a module from one moment on.

    Args:
        module: The module, as it is before the first step.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = held(module).values
        self._tensors = dict(_tensors(module))

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Take what is written to attributes inside for the lab's own, and no effect of a step."""
        before = held(self._module).values
        yield
        after = held(self._module).values
        for path, value in after.items():
            if path not in before or has_moved(before[path], value):
                self._attributes[path] = value
        for path in before.keys() - after.keys():
            self._attributes.pop(path, None)

    def attributes(self) -> dict[str, Any]:
        """Return the Python attributes of all submodules that have changed, by path.

        Numbers and texts stand as they are, tensors and arrays as copies, containers and objects
        as a description. The attributes of objects and the items of containers have paths of their
        own.
        """
        first, now = self._attributes, held(self._module).values
        changed = {
            path: told(value)
            for path, value in now.items()
            if path not in first or has_moved(first[path], value)
        }
        return changed | dict.fromkeys(first.keys() - now.keys(), "deleted")

    def rebound(self) -> dict[str, bool]:
        """Return the paths of parameters and buffers whose place another tensor has taken."""
        first = self._tensors
        return {
            path: True
            for path, tensor in _tensors(self._module)
            if first.get(path, tensor) is not tensor
        }

    def generators(self) -> dict[str, str]:
        """Digest the random generators that the modules hold; comparable within one process."""
        return {
            f"generator {path}": _generator_state(generator)
            for path, generator in held(self._module).generators.items()
        }


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for prefix, child in dotted_modules(module, remove_duplicate=False):
        for holder in (child._parameters, child._buffers):
            for name, tensor in holder.items():
                if tensor is not None:
                    yield prefix + name, tensor


def _generator_state(generator: Any) -> str:
    state: Any
    if isinstance(generator, torch.Generator):
        state = generator.get_state().numpy().tobytes()
    elif isinstance(generator, random.Random):
        state = generator.getstate()
    elif hasattr(generator, "bit_generator"):
        state = repr(generator.bit_generator.state)
    else:
        state = repr(generator.get_state())
    return f"{hash(state) & ((1 << 64) - 1):016x}"
