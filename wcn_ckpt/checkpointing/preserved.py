"""A model whose own checkpoint calls get our replay state, and where its calls arrive."""

from __future__ import annotations

import functools
import weakref
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.utils.checkpoint import checkpoint

from wcn_ckpt.checkpointing.call import checkpointed_call
from wcn_ckpt.checkpointing.functions import TORCH_KEYWORDS, plain_checkpoint
from wcn_ckpt.checkpointing.regions import Region, calling_modules, modules_of
from wcn_ckpt.checkpointing.replay.frame import ReplayFrame
from wcn_ckpt.checkpointing.replay.options import ReplayOptions
from wcn_ckpt.checkpointing.takeover import take_over

CURE = (
    "Reentrant checkpointing runs the forward without a graph and cannot be given state. Make the "
    "model's own calls non-reentrant: Transformers, "
    'gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False}); timm, '
    "timm.layers.set_reentrant_ckpt(False); elsewhere, checkpoint(..., use_reentrant=False)."
)


class PreservedReplayState(AbstractContextManager["PreservedReplayState"]):
    """A model whose own checkpoint calls keep their state through replays.

    It is a forward pre-hook of the model: copies and pickles of the model have one of their own.
    As a context manager it undoes itself on exit.

    Args:
        model: the model.
        options: what is kept and checked.

    Attributes:
        calls: the number of checkpoint calls so far whose state was kept.
    """

    def __init__(self, model: nn.Module, options: ReplayOptions) -> None:
        self._model = weakref.ref(model)
        self._options = options
        self._regions: dict[tuple[int, ...], Region] = {}
        self.calls = 0
        table.add(self)

    def __reduce__(self) -> tuple[type[PreservedReplayState], tuple[Any, ReplayOptions]]:
        """Copy and pickle with the model; `copy.deepcopy` and `pickle` know it by then."""
        return PreservedReplayState, (self._model(), self._options)

    def __repr__(self) -> str:
        """Show the class of the model."""
        model = self._model()
        name = "a model that is gone" if model is None else type(model).__name__
        return f"<replay state of {name}: {self.calls} checkpoint calls kept>"

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Refuse `torch.compile`; runs before each forward of the model.

        Raises:
            RuntimeError: the forward is being traced, in training.
        """
        if not (module.training and torch.is_grad_enabled()):
            return
        if torch.compiler.is_compiling() or get_eval_frame_callback() is not None:
            raise RuntimeError(
                f"{type(module).__name__} runs under torch.compile, which traces the model's own "
                "checkpoint calls: their state cannot be kept. Compile the modules inside them "
                "instead, or undo preserve_replay_state."
            )

    def holds(self, module: nn.Module) -> bool:
        """Whether a module is part of the model."""
        model = self._model()
        return model is not None and any(module is part for part in model.modules())

    def checkpoint(
        self,
        modules: list[nn.Module],
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make a checkpoint call of the model, as a boundary around `modules` would."""
        if kwargs.get("use_reentrant") is not False:
            raise ValueError(
                f"{_names(modules)} makes a checkpoint call with "
                f"use_reentrant={kwargs.get('use_reentrant')!r}. {CURE}"
            )
        keywords = {name: kwargs.pop(name) for name in TORCH_KEYWORDS if name in kwargs}
        while isinstance(function, functools.partial):
            function, args, kwargs = (
                function.func,
                (*function.args, *args),
                {**function.keywords, **kwargs},
            )
        self.calls += 1
        bound = functools.partial(checkpoint, **keywords)
        return checkpointed_call(self._region(modules), function, args, kwargs, bound, None)

    def _region(self, modules: list[nn.Module]) -> Region:
        key = tuple(map(id, modules))
        region = self._regions.get(key)
        if region is None:
            model = self._model()
            named = {} if model is None else {id(m): name for name, m in model.named_modules()}
            paths = {
                named.get(id(m), f"({type(m).__name__} {i})"): m for i, m in enumerate(modules)
            }
            region = self._regions[key] = Region(paths, self._options)
        return region

    def undo(self) -> None:
        """Leave the model's own checkpointing as it was; doing so twice is no error."""
        table.remove(self)
        model = self._model()
        hooks = {} if model is None else model._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is self]:
            del hooks[key]

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Undo."""
        self.undo()


class Table:
    """Which module belongs to which preserved model."""

    def __init__(self) -> None:
        self._preserved: weakref.WeakSet[PreservedReplayState] = weakref.WeakSet()
        self._owners: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()
        self._sees_calls = False

    def add(self, preserved: PreservedReplayState) -> None:
        """Take a model in; the first one takes over the calls of torch's checkpoint."""
        if not self._sees_calls:
            take_over(_checkpoint)
            self._sees_calls = True
        self._preserved.add(preserved)
        self._owners.clear()

    def remove(self, preserved: PreservedReplayState) -> None:
        """Let a model go."""
        self._preserved.discard(preserved)
        self._owners.clear()

    def __len__(self) -> int:
        """The number of preserved models."""
        return len(self._preserved)

    def owner(self, module: nn.Module) -> PreservedReplayState | None:
        """The preserved model that holds a module; looked up once."""
        if module not in self._owners:
            holding = next((p for p in self._preserved if p.holds(module)), None)
            self._owners[module] = None if holding is None else weakref.ref(holding)
        owner = self._owners[module]
        return None if owner is None else owner()


table = Table()


def _checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Stand in for torch's checkpoint in every eager call of this process."""
    if len(table) and torch.is_grad_enabled() and not isinstance(function, ReplayFrame):
        keywords = (value for name, value in kwargs.items() if name not in TORCH_KEYWORDS)
        modules = modules_of(function, (*args, *keywords))
        owner = _first_owner(modules)
        if owner is None:
            # A function that names no module computes with the one whose method makes the call.
            caller = next((m for m in calling_modules() if table.owner(m) is not None), None)
            if caller is not None:
                owner, modules = table.owner(caller), [caller, *modules]
        if owner is not None:
            return owner.checkpoint(modules, function, args, kwargs)
    return plain_checkpoint(function, *args, **kwargs)


def _first_owner(modules: list[nn.Module]) -> PreservedReplayState | None:
    return next((owner for owner in map(table.owner, modules) if owner is not None), None)


def _names(modules: list[nn.Module]) -> str:
    return ", ".join(sorted({type(module).__name__ for module in modules}))
