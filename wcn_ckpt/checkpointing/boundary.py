"""The leaf mixin: a block that is recomputed in backward."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.utils.checkpoint import checkpoint, noop_context_fn

from wcn_ckpt.checkpointing.contexts import (
    ContextFunction,
    compose_context_functions,
)
from wcn_ckpt.checkpointing.errors import InactiveBoundaryWarning
from wcn_ckpt.checkpointing.functions import (
    CheckpointFunction,
    is_torch_checkpoint,
    normalize_checkpoint_function,
)
from wcn_ckpt.checkpointing.model import GradientCheckpointingModelMixin
from wcn_ckpt.checkpointing.replay.frame import ReplayFrame
from wcn_ckpt.checkpointing.replay.known import (
    has_read_state,
    has_running_statistics,
    has_unknown_state,
)
from wcn_ckpt.checkpointing.replay.memory import memory_of
from wcn_ckpt.checkpointing.replay.options import ReplayOptions, StateDeclaration
from wcn_ckpt.checkpointing.structure import PLAIN, StructuredCall

_DEFAULT_FUNCTION = normalize_checkpoint_function(checkpoint)


class GradientCheckpointingMixin(GradientCheckpointingModelMixin):
    """A block whose activations are dropped in forward and recomputed in backward.

    Put it before `nn.Module` in the bases and route the forward pass through
    `_gradient_checkpointed_call`::

        class Block(GradientCheckpointingMixin, nn.Module):
            def __init__(self, channels, use_checkpoint=False):
                super().__init__()
                self._init_gradient_checkpointing(use_checkpoint)
                self.linear = nn.Linear(channels, channels)
                self.norm = nn.BatchNorm1d(channels)

            def forward(self, x):
                return self._gradient_checkpointed_call(self._forward, x)

            def _forward(self, x):
                return self.norm(self.linear(x)).relu()

    Recomputing changes nothing that the block computes: the running statistics of norm layers
    anywhere below it are left as the forward pass left them, with nothing declared. The boundary
    is active when it is enabled *and* in training mode *and* gradients are recorded; otherwise the
    call is a plain one.

    Attributes:
        gradient_checkpointing: whether the boundary is enabled.
    """

    gradient_checkpointing: bool = False
    _replay_options: ReplayOptions = ReplayOptions()
    _reads_and_writes_state: bool = False
    _state_was_watched: bool = False
    _warned_inactive: bool = False

    def _init_gradient_checkpointing(
        self,
        use_checkpoint: bool = False,
        *,
        state: StateDeclaration | None = None,
        learn: bool = True,
        guard: bool = True,
        strict_state: bool = False,
        allow_compile: bool = False,
    ) -> None:
        """Set up the boundary; call it after `nn.Module.__init__`.

        Args:
            use_checkpoint: whether the boundary starts enabled.
            state: buffers to keep through replays besides those found and learned: a name, several
                names, or a mapping from name to `"written"` or `"read_and_written"`.
            learn: find written buffers by watching forwards.
            guard: refuse a replay when something that the forward read has moved.
            strict_state: raise where a replay writes a buffer that nothing preserves.
            allow_compile: let `torch.compile` trace the boundary if norm statistics are its only
                state.

        Raises:
            TypeError: a switch is not a bool, or a name in `state` is not a string.
            ValueError: an unknown kind of state.
        """
        self.gradient_checkpointing = bool(use_checkpoint)
        self.__dict__["_checkpoint_function"] = _DEFAULT_FUNCTION
        self._replay_options = ReplayOptions(state, learn, guard, strict_state, allow_compile)

    @property
    def use_checkpoint(self) -> bool:
        """This boundary's own `gradient_checkpointing` flag, under the name of the constructor."""
        return self.gradient_checkpointing

    @use_checkpoint.setter
    def use_checkpoint(self, enable: bool) -> None:
        self.gradient_checkpointing = bool(enable)

    @property
    def _gradient_checkpointing_func(self) -> CheckpointFunction:
        """The checkpoint function, as Transformers assigns it; normalised on assignment.

        Raises:
            TypeError: on assignment, the value is not callable.
            ValueError: on assignment, the value is torch's reentrant checkpoint.
        """
        function: CheckpointFunction = self.__dict__.get("_checkpoint_function", _DEFAULT_FUNCTION)
        return function

    def __setattr__(self, name: str, value: Any) -> None:
        """Normalise the checkpoint function on assignment; a module is no exception."""
        if name == "_gradient_checkpointing_func":
            self.__dict__["_checkpoint_function"] = normalize_checkpoint_function(value)
        else:
            super().__setattr__(name, value)

    def _get_gradient_checkpointing_context_fn(self) -> ContextFunction | None:
        """Return a context function of this block's own, or None.

        A subclass may return a function that takes no argument and returns
        `(forward_context, recompute_context)`, as `context_fn` of
        `torch.utils.checkpoint.checkpoint`. It is composed with one that the user passes in
        `gradient_checkpointing_kwargs`, the user's first.
        """
        return None

    def _gradient_checkpointed_call(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call `fn(*args, **kwargs)`, recomputing it in backward when the boundary is active.

        Args:
            fn: the computation; look it up at the call, as in `self._forward`.
            args: positional arguments. Tensors in them may be nested in containers, dataclasses
                and geometries.
            kwargs: keyword arguments, likewise.

        Returns:
            What `fn` returns, unchanged.

        Raises:
            TypeError: the boundary keeps state and the checkpoint function is not torch's.
            RuntimeError: the boundary keeps state and runs under `torch.compile`.
            ReplayError: later, out of backward: the replay cannot give the gradient of its forward.
        """
        if not (self.gradient_checkpointing and self.training and torch.is_grad_enabled()):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                self._warn_inactive()
            return fn(*args, **kwargs)
        if torch.compiler.is_compiling():
            return self._traced_call(fn, args, kwargs)
        # Dynamo swallows an error raised while it traces with fullgraph=False and runs the frame
        # again in eager mode: there only its callback tells.
        if get_eval_frame_callback() is not None:
            return self._untraced_call(fn, args, kwargs)
        function = self._gradient_checkpointing_func
        hook = self._get_gradient_checkpointing_context_fn()
        memory, options = memory_of(self), self._replay_options
        plan = memory.plan
        if plan is None or not plan.describes(self, options):
            plan = memory.new_plan(self, options)
        if not is_torch_checkpoint(function):
            if hook is not None or plan.keeps_state():
                raise TypeError(self._custom_function_message(function))
            return function(fn, *args, **kwargs)
        call: StructuredCall | None = None
        saved: tuple[Any, ...] = args
        if kwargs or not PLAIN.issuperset(map(type, args)):
            call = StructuredCall(args, kwargs)
            saved = call.saved
        frame = ReplayFrame(self, fn, memory, plan, call, function)
        if hook is None:
            return function(frame, *saved)
        users = function.keywords.get("context_fn")
        context_fn = compose_context_functions(users or noop_context_fn, hook)
        return function(frame, *saved, context_fn=context_fn)

    def _traced_call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._refuse_untraceable(self._get_gradient_checkpointing_context_fn())
        if self._replay_options.allow_compile:
            fn = functools.partial(_traced, fn)
        return self._gradient_checkpointing_func(fn, *args, **kwargs)

    def _untraced_call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make the call after a graph break, and keep Dynamo from tracing the replay's own code.

        Its guards would hold on to tables that change behind them.
        """
        self._refuse_untraceable(self._get_gradient_checkpointing_context_fn())
        eager = torch.compiler.disable(self._gradient_checkpointed_call)  # type: ignore[no-untyped-call]
        return eager(fn, *args, **kwargs)

    def _refuse_untraceable(self, hook: ContextFunction | None) -> None:
        """Refuse `torch.compile` around state that it cannot keep; Dynamo can trace this.

        The compiler functionalises writes to buffers and keeps one update, so norm statistics come
        out right. State that is read as well does not: its recomputation reads the new value.
        """
        allowed = self._replay_options.allow_compile
        if (
            hook is not None
            or self._reads_and_writes_state
            or has_read_state(self)
            or (allowed and not self._state_was_watched and has_unknown_state(self))
        ):
            raise RuntimeError(
                f"{type(self).__name__} is a gradient-checkpointing boundary with state that its "
                "forward reads and writes, or may (a buffer that no eager training forward has "
                "watched yet), or with a context function of its own; torch.compile would replay "
                "it wrongly. Compile the modules inside the boundary instead, exclude the boundary "
                "with torch.compiler.disable, or disable its gradient checkpointing."
            )
        if not allowed and any(m.training and has_running_statistics(m) for m in self.modules()):
            raise RuntimeError(
                f"{type(self).__name__} is a gradient-checkpointing boundary that keeps norm "
                "statistics, and torch.compile cannot trace how that state is kept. Compile the "
                "modules inside the boundary instead, exclude the boundary with "
                "torch.compiler.disable, disable its gradient checkpointing, or let the compiler "
                "keep the statistics with allow_compile=True."
            )

    def _warn_inactive(self) -> None:
        if self.training or torch.compiler.is_compiling() or self._warned_inactive:
            return
        self._warned_inactive = True
        warnings.warn(
            f"{type(self).__name__} has gradient checkpointing enabled but is in eval mode, so its "
            "activations are kept although gradients are recorded. Call train(), or disable "
            "checkpointing where memory does not matter.",
            InactiveBoundaryWarning,
            stacklevel=4,
        )

    def _custom_function_message(self, function: CheckpointFunction) -> str:
        return (
            f"{type(self).__name__} keeps state through its replays (norm statistics or a context "
            "function of its own), which needs torch.utils.checkpoint.checkpoint or a "
            f"functools.partial of it; got the checkpoint function {function!r}."
        )


def _traced(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run `fn` while Dynamo traces it, and only then.

    After a graph break inside the boundary, torch would checkpoint it in eager mode without any of
    its state being kept.
    """
    if not torch.compiler.is_compiling():
        raise RuntimeError(
            "torch.compile could not trace the inside of a gradient-checkpointing boundary (a "
            "graph break; fullgraph=True says where). Remove the break, or exclude the boundary "
            "with torch.compiler.disable: in eager mode its state is kept."
        )
    return fn(*args, **kwargs)
