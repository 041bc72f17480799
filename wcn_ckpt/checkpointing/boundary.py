"""The leaf mixin: a block that is recomputed in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint

from wcn_ckpt.checkpointing.call import checkpointed_call, is_active
from wcn_ckpt.checkpointing.contexts import ContextFunction
from wcn_ckpt.checkpointing.functions import CheckpointFunction, normalize_checkpoint_function
from wcn_ckpt.checkpointing.model import GradientCheckpointingModelMixin
from wcn_ckpt.checkpointing.replay.options import ReplayOptions, StateDeclaration

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
        if not is_active(self):
            return fn(*args, **kwargs)
        function = self.__dict__.get("_checkpoint_function", _DEFAULT_FUNCTION)
        hook = self._get_gradient_checkpointing_context_fn()
        return checkpointed_call(self, fn, args, kwargs, function, hook)
