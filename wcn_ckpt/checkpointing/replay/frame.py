"""One logical forward of a boundary, and every replay of it."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from wcn_ckpt.checkpointing.errors import ReplayGuardError
from wcn_ckpt.checkpointing.replay import threads
from wcn_ckpt.checkpointing.replay.audit import Audit, report_late, report_lost
from wcn_ckpt.checkpointing.replay.flag import replay_depth
from wcn_ckpt.checkpointing.replay.guard import Ground, moved_message, path_of
from wcn_ckpt.checkpointing.replay.kept import (
    EntryState,
    OriginalEntries,
    adopt,
    capture,
    install,
    put_back_entries,
)
from wcn_ckpt.checkpointing.replay.learning import News, Watched, learn, watch
from wcn_ckpt.checkpointing.replay.memory import BoundaryMemory
from wcn_ckpt.checkpointing.replay.options import ReplayOptions
from wcn_ckpt.checkpointing.replay.plan import ReplayPlan
from wcn_ckpt.checkpointing.replay.redirect import Original, put_back, redirect_statistics
from wcn_ckpt.checkpointing.replay.rng import Draws, is_generator
from wcn_ckpt.checkpointing.structure import StructuredCall

_training = attrgetter("training")


class ReplayFrame:
    """The function handed to torch's checkpoint: first the forward, then its replays.

    Torch calls the function it was given once for the forward and once for each backward pass that
    needs the activations again. The first call runs the block on the caller's own arguments and
    notes what it found and wrote. Every later one makes sure that nothing has moved, shows the
    block what its forward found, and leaves the module as it was. A replay normally ends in torch's
    early-stop exception, which passes through like any other.

    The frame keeps no output, and no argument container of the caller beyond the forward.

    Args:
        boundary: the module.
        fn: its computation.
        memory: what the boundary remembers.
        plan: what it holds.
        options: its switches.
        call: the arguments; None when all of them are positional tensors.
        preserve_rng: whether generators are set back for a replay.
    """

    __slots__ = (
        "_boundary", "_call", "_draws", "_entry", "_fn", "_ground", "_lost", "_memory", "_options",
        "_plan", "_preserve_rng", "_started", "_training",
    )  # fmt: skip

    def __init__(
        self,
        boundary: nn.Module,
        fn: Callable[..., Any],
        memory: BoundaryMemory,
        plan: ReplayPlan,
        options: ReplayOptions,
        call: StructuredCall | None,
        preserve_rng: bool,
    ) -> None:
        self._boundary = boundary
        self._fn = fn
        self._memory = memory
        self._plan = plan
        self._options = options
        self._call = call
        self._preserve_rng = preserve_rng
        self._started = False
        self._entry: list[EntryState] = []
        self._draws: Draws | None = None
        self._ground: Ground | None = None
        self._lost: str | None = None

    def __call__(self, *saved: Any) -> Any:
        """Run the block; `saved` are its tensors, or a list of them for a structured call."""
        if self._started:
            return self._replay(saved)
        self._started = True
        if self._call is None:
            return self._forward(saved, {})
        out = self._forward(*self._call.take_arguments())
        self._call.forward_ended(saved[0])
        return out

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan, memory, options = self._plan, self._memory, self._options
        if threads.replaying:
            threads.check(plan)
        self._training = tuple(map(_training, plan.modules))
        if plan.kept:
            self._entry = capture(plan.kept)
        if replay_depth.depth:
            # Autograd replays the frames of the logical forward, never one made inside a replay.
            return self._fn(*args, **kwargs)
        watched: list[Watched] = []
        learning = options.learn and memory.learning_is_due(self._training)
        if learning:
            watched = watch(self._boundary.modules(), compare_values=True)
        elif plan.watchable and options.learn:
            watched = watch(plan.watchable, compare_values=False)
        draws: Draws | None = None
        if self._preserve_rng:
            draws = Draws(self._generators(), learning or memory.draws_numpy)
        out = self._fn(*args, **kwargs)
        if draws is not None and draws.happened():
            self._draws = draws
            memory.draws_numpy = memory.draws_numpy or draws.from_numpy()
        if watched:
            self._adopt(learn(watched))
        if options.guard:
            self._ground = Ground(self._plan, memory.fingerprints)
        return out

    def _generators(self) -> list[Any]:
        if self._call is None:
            return self._plan.generators
        return self._plan.generators + list(filter(is_generator, self._call.others))

    def _adopt(self, news: list[News]) -> None:
        """Keep for this forward what it was only now seen to write."""
        boundary, memory = self._boundary, self._memory
        if news:
            self._plan = memory.current_plan(boundary, self._options)
        for item in news:
            kept = adopt(self._entry, item)
            path = path_of(boundary, item.watched.holder, item.name)
            if not kept:
                self._lost = path
            if item.late or not kept:
                report_late(boundary, memory, path)

    def _replay(self, saved: tuple[Any, ...]) -> Any:
        plan = self._plan
        if self._ground is not None:
            self._check_ground(saved)
        if self._lost is not None and self._options.strict_state:
            report_lost(self._boundary, self._lost)
        args, kwargs = (saved, {}) if self._call is None else self._call.rebuild(saved[0])
        statistics: list[Original] = []
        entries: list[OriginalEntries] = []
        modes: list[tuple[nn.Module, bool]] = []
        present: Draws | None = None
        replay_depth.depth += 1
        try:
            threads.enter(plan)
            # A dispatch mode of the user (selective checkpointing) must not see our operations.
            if torch._C._len_torch_dispatch_stack():
                with _disable_current_modes():
                    self._show_entry_state(statistics, entries)
            else:
                self._show_entry_state(statistics, entries)
            if not self._boundary.training or tuple(map(_training, plan.modules)) != self._training:
                self._set_modes(modes)
            if self._draws is not None:
                present = self._draws.rewind()
            if plan.watchable or entries:
                with Audit(self._boundary, self._memory, plan, self._options, entries):
                    return self._fn(*args, **kwargs)
            return self._fn(*args, **kwargs)
        finally:
            if present is not None:
                present.rewind()
            for module, mode in modes:
                module.training = mode
            put_back_entries(entries)
            put_back(statistics)
            threads.leave()
            replay_depth.depth -= 1

    def _show_entry_state(self, statistics: list[Original], entries: list[OriginalEntries]) -> None:
        if self._plan.norms:
            redirect_statistics(self._plan.norms, self._plan.scratch, statistics)
        if self._entry:
            install(self._entry, entries)

    def _set_modes(self, modes: list[tuple[nn.Module, bool]]) -> None:
        """Replay in the modes of the forward, whatever `train()` and `eval()` did since."""
        wanted = [(self._boundary, True), *zip(self._plan.modules, self._training, strict=True)]
        for module, mode in wanted:
            if module.training is not mode:
                modes.append((module, module.training))
                module.training = mode

    def _check_ground(self, saved: tuple[Any, ...]) -> None:
        boundary = self._boundary
        assert self._ground is not None
        self._ground.check(boundary)
        if self._call is not None:
            moved = self._call.moved(saved[0])
            if moved is not None:
                raise ReplayGuardError(moved_message(boundary, moved))
        for state in self._entry:
            name = state.moved()
            if name is not None:
                path = path_of(boundary, state.holder, name)
                raise ReplayGuardError(
                    moved_message(boundary, f"the former value of {path!r} was changed in place")
                )
