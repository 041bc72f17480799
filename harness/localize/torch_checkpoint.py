"""Notices the regions that torch's checkpoint makes, their replays, and what is saved in both.

Every caller of ``torch.utils.checkpoint``'s non-reentrant variant goes through three names of that
module, which are looked up at each call: the generator that surrounds the forward, and the
saved-tensor hooks of a forward and of a replay. They are replaced while a recording lasts. Where a
release of torch does not have them, nothing is replaced, and replays are matched with their
forwards by what they compute.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint as torch_checkpoint

if TYPE_CHECKING:
    from harness.localize.calls import Call, Replay
    from harness.localize.recorder import Recorder

_GENERATOR = "_checkpoint_without_reentrant_generator"
_FORWARD_HOOK = "_checkpoint_hook"
_REPLAY_HOOK = "_recomputation_hook"


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
    names = (_GENERATOR, _FORWARD_HOOK, _REPLAY_HOOK)
    if not all(hasattr(torch_checkpoint, name) for name in names):
        yield
        return
    originals: dict[str, Any] = {name: getattr(torch_checkpoint, name) for name in names}
    pending: list[RegionHandle] = []
    handles: weakref.WeakKeyDictionary[Any, RegionHandle] = weakref.WeakKeyDictionary()
    replacements = {
        _GENERATOR: _generator(originals[_GENERATOR], recorder, pending),
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


def _generator(
    original: Callable[..., Any], recorder: Recorder, pending: list[RegionHandle]
) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def generator(fn: Callable[..., Any], *rest: Any, **keywords: Any) -> Any:
        bound = signature.bind(fn, *rest, **keywords).arguments
        handle = RegionHandle(bound.get("args", ()), bound.get("kwargs", {}))

        def replayed(*args: Any, **kwargs: Any) -> Any:
            call = recorder.begin_region(handle, args, kwargs)
            try:
                output = fn(*args, **kwargs)
            except BaseException:
                recorder.end_region(call, stopped=True)
                raise
            recorder.end_region(call, stopped=False)
            return output

        pending[:] = [handle]
        return original(replayed, *rest, **keywords)

    return generator


def _forward_hook(
    original: type,
    recorder: Recorder,
    pending: list[RegionHandle],
    handles: weakref.WeakKeyDictionary[Any, RegionHandle],
) -> type:
    class ForwardHook(original):  # type: ignore[misc]  # a class that is only known when it runs
        def __init__(self, frame: Any) -> None:
            super().__init__(frame)
            self.handle = handles[frame] = pending.pop()
            _record_saved(self, recorder)

        def __enter__(self) -> None:
            super().__enter__()
            self.call = recorder.begin_region(self.handle, *self.handle.take_arguments())

        def __exit__(self, kind: type | None, *rest: Any) -> None:
            recorder.end_region(self.call, stopped=kind is not None)
            super().__exit__(kind, *rest)

    return ForwardHook


def _replay_hook(
    original: type, recorder: Recorder, handles: weakref.WeakKeyDictionary[Any, RegionHandle]
) -> type:
    class ReplayHook(original):  # type: ignore[misc]  # as above
        def __init__(self, frame: Any, *rest: Any) -> None:
            super().__init__(frame, *rest)
            self.handle = handles.get(frame())
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

    hooks.pack_hook = recorded_pack
