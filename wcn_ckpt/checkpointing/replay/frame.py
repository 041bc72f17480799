"""One logical forward of a boundary, and every replay of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from types import MethodType
from typing import Any

import torch
from torch import nn

from wcn_ckpt.checkpointing.errors import ReplayGuardError
from wcn_ckpt.checkpointing.functions import CheckpointFunction
from wcn_ckpt.checkpointing.replay import threads
from wcn_ckpt.checkpointing.replay.audit import Audit, report_late, report_lost
from wcn_ckpt.checkpointing.replay.cpu_generator import CpuState, cpu_generator
from wcn_ckpt.checkpointing.replay.found_norms import NormSearch
from wcn_ckpt.checkpointing.replay.generators import Place, exchange, generators_in
from wcn_ckpt.checkpointing.replay.guard import Ground, moved_message, path_of
from wcn_ckpt.checkpointing.replay.kept import (
    EntryState,
    OriginalEntries,
    adopt,
    capture,
    install,
    put_back_entries,
)
from wcn_ckpt.checkpointing.replay.learning import (
    News,
    Watched,
    learn,
    learned_since,
    watch,
)
from wcn_ckpt.checkpointing.replay.memory import BoundaryMemory
from wcn_ckpt.checkpointing.replay.overwrites import SavedValues
from wcn_ckpt.checkpointing.replay.plan import ReplayPlan
from wcn_ckpt.checkpointing.replay.recollection import Recollection
from wcn_ckpt.checkpointing.replay.redirect import (
    KeptHolder,
    Original,
    own_operations,
    put_back,
    redirect_statistics,
)
from wcn_ckpt.checkpointing.replay.rng import (
    Draws,
    GlobalStates,
    global_states,
    present_states,
    read_mark,
)
from wcn_ckpt.checkpointing.replay.switches import (
    Switched,
    flags_of,
    modes_of,
    restore_settings,
    set_all,
    settings_of,
)
from wcn_ckpt.checkpointing.replay.threads import this_thread
from wcn_ckpt.checkpointing.structure import StructuredCall

_training = attrgetter("training")
_tracking = attrgetter("track_running_stats")
_dispatch_modes = torch._C._len_torch_dispatch_stack
_cpu_state = cpu_generator.present
_set_cpu_state = cpu_generator.set


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
        call: the arguments; None when all of them are positional tensors.
        function: torch's checkpoint, for its keyword `preserve_rng_state`.
        keeps_generator: whether torch's CPU generator, the only one that torch's checkpoint could
            preserve here, is preserved by the frame instead.
    """

    _started = False
    _loose: tuple[Any, ...] = ()
    _is_guided = False
    _entry: Sequence[EntryState] = ()
    _draws: Draws | None = None
    _ground: Ground | None = None
    _lost: str | None = None
    _cpu_state: CpuState | None = None
    _saved_values: SavedValues | None = None
    _running: tuple[Draws, list[Watched], list[KeptHolder]] | GlobalStates | None = None

    def __init__(
        self,
        boundary: nn.Module,
        fn: Callable[..., Any],
        memory: BoundaryMemory,
        plan: ReplayPlan,
        call: StructuredCall | None,
        function: CheckpointFunction,
        keeps_generator: bool = False,
    ) -> None:
        self._boundary = boundary
        self._fn = Recollection(fn) if plan.recalls else fn
        # What a bound method of a module refers to is in the plan.
        if type(fn) is not MethodType and not isinstance(fn, nn.Module):
            self._loose = (fn,)
        self._memory = memory
        self._plan = plan
        self._held = plan.generators
        self._call = call
        self._function = function
        self._keeps_generator = keeps_generator

    def __call__(self, *saved: Any) -> Any:
        """Run the block; `saved` are the tensors of its arguments."""
        if not self._started:
            self._started = True
            return self._forward(saved)
        if self._running is not None:
            self._prepare_within_forward()
        boundary, plan, replays = self._boundary, self._plan, this_thread.replays
        flags = None if self._ground is None else self._ground.check(boundary)
        statistics: list[Original] = []
        switched: list[Switched] = []
        cpu_state = self._cpu_state
        if cpu_state is not None:
            present_state = _cpu_state()
            if present_state is not cpu_state:
                _set_cpu_state(cpu_state)
        runs = False
        replays.append(plan)
        try:
            if len(threads.in_use_by_thread) > 1:
                threads.check(plan, replaying=True)
            # First the modes of the forward: they decide which norms write their statistics.
            if (
                flags
                or not boundary.training
                or tuple(map(_training, plan.modules)) != self._training
                or tuple(map(_tracking, plan.norm_layers)) != self._tracking
            ):
                wanted = [(boundary, "training", True), *flags_of(flags or ())]
                switched += set_all(wanted + modes_of(plan, self._training, self._tracking))
            if plan.norms:
                # A dispatch mode of the user (selective checkpointing) must not see our operations.
                if _dispatch_modes():
                    with own_operations():
                        redirect_statistics(plan.norms, statistics)
                else:
                    redirect_statistics(plan.norms, statistics)
            runs = True
            if self._is_guided or not self._held.are_all(boundary):
                return self._guided_replay(saved)
            return self._fn(*saved)
        finally:
            if runs and tuple(map(_training, plan.modules)) != self._training:
                set_all(modes_of(plan, self._training, self._tracking))
                self._memory.found_switching()
            if switched:
                set_all(switched)
            if statistics:
                put_back(statistics)
            replays.pop()
            if cpu_state is not None:
                _set_cpu_state(present_state)

    def _forward(self, saved: tuple[Any, ...]) -> Any:
        """Run the logical forward."""
        if self._keeps_generator:
            self._cpu_state = _cpu_state()
        plan, memory = self._plan, self._memory
        self._training = training = tuple(map(_training, plan.modules))
        self._tracking = tuple(map(_tracking, plan.norm_layers))
        memory.forwards = count = memory.forwards + 1
        replays, forwards, learning = this_thread.lists
        if (
            self._call is not None
            or not plan.quiet
            or (self._loose and generators_in(self._loose))
            or training != memory.training
            or count & (count - 1) == 0
            or replays
            or learning
            or memory.draws_numpy
        ):
            return self._watched_forward(saved)
        self._running = states = global_states()
        forwards.append(plan)
        try:
            if len(threads.in_use_by_thread) > 1:
                threads.check(plan, replaying=False)
            out = self._fn(*saved)
        finally:
            forwards.pop()
            self._running = None
        if states.mark != read_mark() and self._preserves_rng():
            self._draws = Draws(states)
            self._is_guided = True
        if plan.options.guard:
            self._ground = Ground(plan, training, memory.fingerprints)
        return out

    def _watched_forward(self, saved: Any) -> Any:
        """Run the logical forward where more than drawing numbers may have to be noticed."""
        plan, options, memory = self._plan, self._plan.options, self._memory
        args, kwargs = (saved, {}) if self._call is None else self._call.take_arguments()
        self._is_guided = True
        if plan.kept:
            self._entry = capture(plan.kept)
        if this_thread.replays:
            # Autograd replays the frames of the logical forward, never one made inside a replay.
            return self._fn(*args, **kwargs)
        due = memory.learning_is_due(self._training) or bool(this_thread.learning)
        learning = options.learn and due
        watched: list[Watched] = []
        if learning:
            watched = watch(self._boundary.modules(), plan.managed_by_fsdp, compare_values=True)
        elif plan.watchable and options.learn:
            watched = watch(plan.watchable, plan.managed_by_fsdp, compare_values=False)
        given = self._given() if options.learn else []
        search = NormSearch(self._boundary, memory, plan.norms, given, learning)
        exact = learning or memory.draws_numpy
        draws = Draws(present_states(exact), self._generators())
        saves: AbstractContextManager[None] = nullcontext()
        if learning and options.guard:
            self._saved_values = SavedValues(self._boundary)
            saves = self._saved_values.of_forward()
        inside: list[tuple[ReplayFrame, list[Watched]]] = []
        if learning:
            this_thread.learning.append(inside)
        this_thread.forwards.append(plan)
        self._running = draws, watched, plan.kept
        try:
            if len(threads.in_use_by_thread) > 1:
                threads.check(plan, replaying=False)
            with saves, search.around():
                out = self._fn(*args, **kwargs)
        finally:
            this_thread.forwards.pop()
            self._running = None
            if learning:
                this_thread.learning.pop()
        if self._preserves_rng() and draws.happened(exact):
            self._draws = draws
            memory.draws_numpy = memory.draws_numpy or draws.from_numpy()
        if self._call is not None:
            self._call.forward_ended(saved)
        outdated, read = search.found()
        self._entry = [*self._entry, *read]
        # The forward itself may have registered a module or a parameter.
        if outdated or not plan.same_entries():
            modes = dict(zip(plan.modules, self._training, strict=True))
            tracking = dict(zip(plan.norm_layers, self._tracking, strict=True))
            self._plan = renewed = memory.new_plan(self._boundary, options)
            self._training = tuple(modes.get(m, m.training) for m in renewed.modules)
            self._tracking = tuple(tracking.get(m, _tracking(m)) for m in renewed.norm_layers)
        if learning:
            self._boundary.__dict__["_state_was_watched"] = True
        if watched:
            self._adopt(learn(watched, plan.kept))
            for frame, watched_inside in inside:
                frame._adopt(learned_since(watched_inside, frame._plan.kept))
            for enclosing in this_thread.learning:
                enclosing.append((self, watched))
        if options.guard:
            self._ground = Ground(self._plan, self._training, memory.fingerprints)
        return out

    def _prepare_within_forward(self) -> None:
        """Show a replay what the forward found, where the block itself asks for a gradient."""
        running = self._running
        self._is_guided = True
        if isinstance(running, GlobalStates):
            draws = Draws(running)
        else:
            assert running is not None  # there is a forward
            draws, watched, kept = running
            self._adopt(learn(watched, kept))
        if self._preserves_rng():
            self._draws = draws

    def _preserves_rng(self) -> bool:
        preserve: bool = self._function.keywords.get("preserve_rng_state", True)
        return preserve

    def _given(self) -> list[Any]:
        return [] if self._call is None else self._call.others

    def _generators(self) -> list[Any]:
        return self._plan.generators.found + generators_in([*self._given(), *self._loose])

    def _adopt(self, news: list[News]) -> None:
        """Keep for this forward what it was only now seen to write."""
        if not news:
            return
        boundary, memory = self._boundary, self._memory
        self._plan = memory.new_plan(boundary, self._plan.options)
        self._entry = list(self._entry)
        for item in news:
            kept = adopt(self._entry, item)
            path = path_of(boundary, item.watched.holder, item.name)
            if not kept:
                self._lost = path
            if item.late or not kept:
                report_late(boundary, memory, path)
        if self._ground is not None:
            self._ground = Ground(self._plan, self._training, memory.fingerprints)

    def _guided_replay(self, saved: tuple[Any, ...]) -> Any:
        """Replay with the arguments, random numbers and state that the forward found."""
        boundary, plan = self._boundary, self._plan
        if self._ground is not None:
            self._check_arguments_and_entry(saved)
        if self._lost is not None and plan.options.strict_state:
            report_lost(boundary, self._lost)
        args, kwargs = (saved, {}) if self._call is None else self._call.rebuild(saved)
        entries: list[OriginalEntries] = []
        present: Draws | None = None
        made: Sequence[Place] = ()
        settings = settings_of(plan)
        try:
            with own_operations():
                install(self._entry, entries)
            if self._draws is not None:
                present = self._draws.rewind()
            if self._preserves_rng():
                made = exchange(self._held.replaced(boundary))
            due = self._memory.audit_is_due()
            saves: AbstractContextManager[None] = nullcontext()
            if due and self._saved_values is not None:
                saves = self._saved_values.of_replay()
            with Audit(boundary, plan, entries, compare_values=due), saves:
                return self._fn(*args, **kwargs)
        finally:
            if self._call is not None:
                self._call.give_back()
            exchange(made)
            if present is not None:
                present.rewind()
            put_back_entries(entries)
            if restore_settings(plan, settings):
                self._memory.found_switching()

    def _check_arguments_and_entry(self, saved: tuple[Any, ...]) -> None:
        boundary = self._boundary
        if self._call is not None:
            moved = self._call.moved(saved)
            if moved is not None:
                raise ReplayGuardError(moved_message(boundary, moved))
        for state in self._entry:
            name = state.moved()
            if name is not None:
                path = path_of(boundary, state.holder, name)
                raise ReplayGuardError(
                    moved_message(boundary, f"the former value of {path!r} was changed in place")
                )
