"""Records what every submodule computes in each logical forward and in each replay.

Hooks on every submodule copy what goes in and out, the state around it, and the random generators.
The recording draws no random number, writes nothing of the subject's, builds no graph and calls no
collective, so the run is what it is without it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from harness.computations import Computation, wrap_computations
from harness.localize.calls import Autocast, Call, Kind, Moment, Recording, Replay, Saved
from harness.localize.generators import generator_states, generators_in, owned_generators
from harness.localize.orphans import adopt_orphans
from harness.localize.state import Place, state_of
from harness.localize.surroundings import Surroundings
from harness.localize.torch_checkpoint import RegionHandle, watch_torch_checkpoint
from harness.localize.values import Leaves, hold, leaves_of, shared_copies
from harness.trace import Trace

_WRAPPERS = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")


class Recorder:
    """Records one run of one arm; pass :meth:`watch` to :func:`harness.program.execute`."""

    def __init__(self) -> None:
        self.recording = Recording()
        self._stack: list[Call] = []
        self._orphans: list[Call] = []
        self._generators: dict[str, Any] = {}
        self._count = 0

    @contextmanager
    def watch(self, trace: Trace) -> Iterator[None]:
        """Record what runs inside.

        Args:
            trace: The trace of the run; its module is the subject, as the arm prepared it.
        """
        self._trace = trace
        self._subject = trace.module
        self._modules: dict[str, nn.Module] = {}
        self._surroundings = Surroundings(named_modules(self._subject))
        self._generators = {
            **self._surroundings.generators,
            **owned_generators(named_modules(self._subject)),
        }
        with ExitStack() as stack:
            stack.enter_context(shared_copies())
            for path, module in list(named_modules(self._subject)):
                self._modules.setdefault(path, module)
                if not isinstance(module, torch.jit.ScriptModule):
                    self._hook(module, path, stack)
            stack.callback(wrap_computations(self._subject, self._body))
            stack.enter_context(watch_torch_checkpoint(self))
            yield
        adopt_orphans(self.recording, self._orphans)

    def begin_region(self, handle: RegionHandle, args: tuple[Any, ...], kwargs: Any) -> Call:
        """Note that a checkpointed function starts, in its forward or in a replay."""
        module = self._stack[-1].module if self._stack else ""
        if handle.forward is not None:
            module = handle.forward.module
        replay = handle.replay
        call = self._enter("region", module, args, kwargs, parentless=replay is not None)
        if replay is not None:
            replay.call = call
        elif handle.forward is None:
            handle.forward = call
        return call

    def end_region(self, call: Call, *, stopped: bool) -> None:
        """Note that it ended; ``stopped`` where an exception ended it, as early stop does."""
        call.stopped = stopped
        self._leave(call, None)

    def begin_replay(self, handle: RegionHandle) -> None:
        """Note that torch is about to replay a region."""
        if handle.forward is None:
            return
        handle.replays += 1
        replay = Replay(handle.forward, handle.replays, self._trace.now)
        replay.before = self._moment()
        self.recording.replays.append(replay)
        handle.replay = replay

    def end_replay(self, handle: RegionHandle) -> None:
        """Note that a replay is over, with everything put back that it puts back."""
        if handle.replay is not None:
            handle.replay.after = self._moment()
            handle.replay = None

    def saved(self, tensor: Tensor) -> None:
        """Note that a tensor is saved for backward inside a region."""
        if self._stack:
            call = self._stack[-1]
            call.events.append(Saved(hold(tensor), self._place_of(tensor)))

    def _hook(self, module: nn.Module, path: str, stack: ExitStack) -> None:
        def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not torch.compiler.is_compiling():
                self._enter("module", path, args, kwargs)

        def after(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            if not torch.compiler.is_compiling():
                self._leave_module(path, output)

        handle = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        stack.callback(handle.remove)
        handle = module.register_forward_hook(after, with_kwargs=True)
        stack.callback(handle.remove)

    def _body(self, computation: Computation, name: str) -> Computation:
        path = plain_path(name)

        def body(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return computation(*args, **kwargs)
            entered = self._enter("body", path, args, kwargs)
            try:
                output = computation(*args, **kwargs)
            except BaseException:
                entered.stopped = True
                self._leave(entered, None)
                raise
            self._leave(entered, output)
            return output

        return body

    def _enter(
        self,
        kind: Kind,
        path: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        parentless: bool = False,
    ) -> Call:
        self._generators.update(generators_in([*args, *kwargs.values()], "argument"))
        self._count += 1
        call = Call(
            kind=kind,
            module=path,
            point=self._trace.now,
            order=self._count,
            inputs=_inputs(args, kwargs),
            entry=self._moment_of(kind, path),
            arguments=(args, kwargs),
        )
        if parentless:
            pass
        elif self._stack:
            self._stack[-1].events.append(call)
        elif _in_backward():
            self._orphans.append(call)
        else:
            self.recording.forwards.append(call)
        self._stack.append(call)
        return call

    def _leave_module(self, path: str, output: Any) -> None:
        for call in reversed(self._stack):
            if call.kind == "module" and call.module == path:
                self._leave(call, output)
                return

    def _leave(self, call: Call, output: Any) -> None:
        while self._stack and self._stack[-1] is not call:
            inner = self._stack.pop()
            inner.stopped = True
            self._close(inner)
        if self._stack:
            self._stack.pop()
        if not call.stopped and call.kind != "region":
            call.outputs = leaves_of(output, "output")
        self._close(call)

    def _close(self, call: Call) -> None:
        call.exit = self._moment_of(call.kind, call.module)
        args, kwargs = call.arguments
        call.inputs_after = _inputs(args, kwargs)
        call.arguments = ((), {})

    def _moment_of(self, kind: Kind, path: str) -> Moment:
        # A region may read anything; a module is taken to read what is below it.
        if kind == "region" or path not in self._modules:
            return self._moment()
        return self._moment(self._modules[path], path)

    def _moment(self, module: nn.Module | None = None, path: str = "") -> Moment:
        return Moment(
            state=state_of(named_modules(module or self._subject, path)),
            generators=generator_states(self._generators),
            autocast=_autocast(),
            records_gradients=torch.is_grad_enabled(),
            surroundings=self._surroundings.now(),
        )

    def _place_of(self, tensor: Tensor) -> Place | None:
        """Return the parameter or buffer that a tensor is, or is a view of the start of."""
        address = _address(tensor)
        if not address:
            return None
        for path, module in named_modules(self._subject):
            for kind, tensors in (("buffer", module._buffers), ("parameter", module._parameters)):
                for name, held in tensors.items():
                    if held is not None and _address(held) == address:
                        return Place(kind, path, name)
        return None


def named_modules(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield path and module for everything below a module, without the names of wrappers."""
    for name, child in module.named_modules(prefix=path):
        yield plain_path(name), child


@functools.cache
def plain_path(name: str) -> str:
    """Return the path of a module without the names of wrappers."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Leaves:
    found: Leaves = {}
    for index, value in enumerate(args):
        found |= leaves_of(value, f"input[{index}]")
    for name, value in kwargs.items():
        found |= leaves_of(value, name)
    return found


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _autocast() -> Autocast:
    devices = ("cpu", "cuda")
    return Autocast(
        dtypes=tuple(
            (device, str(torch.get_autocast_dtype(device)).removeprefix("torch."))
            for device in devices
            if torch.is_autocast_enabled(device)
        ),
        caches=torch.is_autocast_cache_enabled(),
        nesting=_nesting(),
    )


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _address(tensor: Tensor) -> int:
    """Return where a tensor's data begin; 0 where it has none."""
    try:
        return tensor.data_ptr() if tensor.numel() else 0
    except (RuntimeError, ValueError):  # sparse, meta and uninitialized tensors have none
        return 0
