"""Notices the regions that torch's checkpoint makes, their replays, and what is saved in both.

Every caller of ``torch.utils.checkpoint``'s non-reentrant variant goes through three names of that
module, which are looked up at each call: the generator that surrounds the forward, and the
saved-tensor hooks of a forward and of a replay. They are replaced while a recording lasts. Where a
release of torch does not have them, or has them with other parameters, nothing is replaced, and
replays are matched with their forwards by what they compute.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint as torch_checkpoint
from torch.autograd.graph import saved_tensors_hooks

if TYPE_CHECKING:
    from harness.localize.calls import Call, Replay
    from harness.localize.recorder import Recorder

_GENERATORS = (
    "_checkpoint_without_reentrant_generator_impl",
    "_checkpoint_without_reentrant_generator",
)
"""The innermost first: since torch 2.14 the second calls the first, and so does ``checkpoint``."""

_FORWARD_HOOK = "_checkpoint_hook"
_REPLAY_HOOK = "_recomputation_hook"
_TORCHS_OWN = "_checkpoint_internal"
"""Mark of torch 2.14 on its own pack hooks, which it looks past for those of the user."""


class RegionHandle:
    """Links one call of torch's checkpoint with its replays."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.forward: Call | None = None
        self.replay: Replay | None = None
        self.replays = 0

    def take_arguments(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of the forward, and forget them: they are the caller's."""
        taken = self.args, self.kwargs
        self.args, self.kwargs = (), {}
        return taken


@contextmanager
def watch_torch_checkpoint(recorder: Recorder) -> Iterator[None]:
    """Tell a recorder of every region, replay and saved tensor of torch's checkpoint.

    Args:
        recorder: Is told.
    """
    generator_name = next((n for n in _GENERATORS if hasattr(torch_checkpoint, n)), None)
    if generator_name is None or not _known(generator_name):
        yield
        return
    names = (generator_name, _FORWARD_HOOK, _REPLAY_HOOK)
    originals: dict[str, Any] = {name: getattr(torch_checkpoint, name) for name in names}
    pending: list[RegionHandle] = []
    handles: weakref.WeakKeyDictionary[Any, RegionHandle] = weakref.WeakKeyDictionary()
    replacements = {
        generator_name: _generator(originals[generator_name], pending, recorder),
        _FORWARD_HOOK: _forward_hook(originals[_FORWARD_HOOK], recorder, pending, handles),
        _REPLAY_HOOK: _replay_hook(originals[_REPLAY_HOOK], recorder, handles),
    }
    for name, replacement in replacements.items():
        setattr(torch_checkpoint, name, replacement)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch_checkpoint, name, original)


def _known(generator_name: str) -> bool:
    """Tell whether the three names are what their replacements count on."""
    generator = getattr(torch_checkpoint, generator_name)
    forward_hook, replay_hook = (
        getattr(torch_checkpoint, name, None) for name in (_FORWARD_HOOK, _REPLAY_HOOK)
    )
    return (
        _takes(generator, "fn", "args", "kwargs")
        and all(
            isinstance(hook, type) and issubclass(hook, saved_tensors_hooks)
            for hook in (forward_hook, replay_hook)
        )
        and _takes(forward_hook, "frame")
        and _takes(replay_hook, "target_frame_ref")
    )


def _takes(function: Any, *parameters: str) -> bool:
    try:
        return set(parameters) <= set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # none is known of it
        return False


def _generator(
    original: Callable[..., Any], pending: list[RegionHandle], recorder: Recorder
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def generator(*given: Any, **keywords: Any) -> Iterator[Any]:
        bound = signature.bind(*given, **keywords)
        fn = bound.arguments["fn"]
        handle = RegionHandle(bound.arguments.get("args", ()), bound.arguments.get("kwargs", {}))

        def replayed(*args: Any, **kwargs: Any) -> Any:
            call = recorder.begin_region(handle, args, kwargs)
            try:
                output = fn(*args, **kwargs)
            except BaseException:
                recorder.end_region(call, stopped=True)
                raise
            recorder.end_region(call, stopped=False)
            return output

        bound.arguments["fn"] = replayed
        pending.append(handle)
        try:
            yield from original(*bound.args, **bound.kwargs)
        finally:
            if handle in pending:
                pending.remove(handle)

    return generator


def _forward_hook(
    original: type,
    recorder: Recorder,
    pending: list[RegionHandle],
    handles: weakref.WeakKeyDictionary[Any, RegionHandle],
) -> type:
    class ForwardHook(original):  # type: ignore[misc]  # a class that is only known when it runs
        def __init__(self, frame: Any, *rest: Any, **keywords: Any) -> None:
            super().__init__(frame, *rest, **keywords)
            # A caller that imported the generator by name, before it was replaced, leaves none.
            self.handle = pending.pop() if pending else None
            if self.handle is not None:
                handles[frame] = self.handle
                _record_saved(self, recorder)

        def __enter__(self) -> None:
            super().__enter__()
            if self.handle is not None:
                self.call = recorder.begin_region(self.handle, *self.handle.take_arguments())

        def __exit__(self, kind: type | None, *rest: Any) -> None:
            if self.handle is not None:
                recorder.end_region(self.call, stopped=kind is not None)
            super().__exit__(kind, *rest)

    return ForwardHook


def _replay_hook(
    original: type, recorder: Recorder, handles: weakref.WeakKeyDictionary[Any, RegionHandle]
) -> type:
    class ReplayHook(original):  # type: ignore[misc]  # as above
        def __init__(self, target_frame_ref: Any, *rest: Any, **keywords: Any) -> None:
            super().__init__(target_frame_ref, *rest, **keywords)
            self.handle = handles.get(target_frame_ref())
            if self.handle is not None:
                _record_saved(self, recorder)

        def __enter__(self) -> None:
            if self.handle is not None:
                recorder.begin_replay(self.handle)
            super().__enter__()

        def __exit__(self, *exception: Any) -> None:
            super().__exit__(*exception)
            if self.handle is not None:
                recorder.end_replay(self.handle)

    return ReplayHook


def _record_saved(hooks: Any, recorder: Recorder) -> None:
    """Make saved-tensor hooks tell a recorder of what they are given, before they take it."""
    pack = hooks.pack_hook

    def recorded_pack(tensor: Any) -> Any:
        recorder.saved(tensor)
        return pack(tensor)

    if hasattr(pack, _TORCHS_OWN):
        setattr(recorded_pack, _TORCHS_OWN, getattr(pack, _TORCHS_OWN))
    hooks.pack_hook = recorded_pack
