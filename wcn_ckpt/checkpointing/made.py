"""A module that was made a boundary in place: its switches, and the forward that stands before it.

Everything lies in the `__dict__` of the instance, so that class, hooks and `state_dict` stay what
they were and taking the entries out undoes it.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from wcn_ckpt.checkpointing.call import checkpointed_call, is_active
from wcn_ckpt.checkpointing.functions import CheckpointFunction, normalize_checkpoint_function
from wcn_ckpt.checkpointing.replay.options import ReplayOptions

_SWITCHES = (
    "gradient_checkpointing",
    "_gradient_checkpointing_func",
    "_replay_options",
    "_reads_and_writes_state",
    "_state_was_watched",
    "_warned_inactive",
)


class BoundaryForward:
    """The `forward` of an instance: the one of its class, or an earlier one, as a boundary.

    It refers to its module weakly, so that a model is freed as soon as it is dropped. A deep copy
    or a pickle of the module carries a copy that is bound to the copied module.

    Args:
        module: the module.
        replaced: a `forward` that was in its `__dict__` before; None if it used that of its class.
    """

    __name__ = "forward"

    def __init__(self, module: nn.Module, replaced: Any = None) -> None:
        self._module = weakref.ref(module)
        self.replaced = replaced
        self._given: Any = None
        self._function: CheckpointFunction = None

    def __reduce__(self) -> tuple[type[BoundaryForward], tuple[Any, Any]]:
        """Copy and pickle with the module; `copy.deepcopy` and `pickle` know it by then."""
        return BoundaryForward, (self.__self__, self.replaced)

    @property
    def __self__(self) -> Any:
        """The module.

        Raises:
            ReferenceError: it exists no more.
        """
        module = self._module()
        if module is None:
            raise ReferenceError("This forward belongs to a module that no longer exists.")
        return module

    @property
    def __wrapped__(self) -> Any:
        """What is called: `inspect.signature` shows its parameters."""
        if self.replaced is not None:
            return self.replaced
        module = self.__self__
        return type(module).forward.__get__(module, type(module))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's computation, and recompute it in backward if the boundary is active."""
        module, fn = self.__self__, self.__wrapped__
        if not is_active(module):
            return fn(*args, **kwargs)
        given = module._gradient_checkpointing_func
        if given is not self._given:
            self._function, self._given = normalize_checkpoint_function(given), given
        return checkpointed_call(module, fn, args, kwargs, self._function, None)


def is_made(module: nn.Module) -> bool:
    """Whether a module was made a boundary in place and still is one."""
    return "_replay_options" in vars(module) and "_gradient_checkpointing_func" in vars(module)


def install(module: nn.Module, enable: bool) -> BoundaryForward:
    """Make a module a boundary."""
    entries = vars(module)
    forward = BoundaryForward(module, entries.get("forward"))
    function = normalize_checkpoint_function(checkpoint)
    values = (enable, function, ReplayOptions(), False, False, False)
    entries.update(zip(_SWITCHES, values, strict=True))
    entries["forward"] = forward
    return forward


def uninstall(module: nn.Module) -> None:
    """Make a boundary the module that it was."""
    entries = vars(module)
    forward = entries.pop("forward")
    if forward.replaced is not None:
        entries["forward"] = forward.replaced
    for name in (*_SWITCHES, "_replay_memory"):
        entries.pop(name, None)
