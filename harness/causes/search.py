"""Which of the things that were located a difference between the arms comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from harness.causes.explanation import Explanation, because, because_located
from harness.causes.traces import GRADIENTS, explain_traces, owner_of, phase_of, value_before
from harness.equivalence import Difference, bitwise_equal, describe_difference, equal
from harness.findings import CauseKind
from harness.localize.generators import CUDA, NUMPY, PYTHON, TORCH
from harness.localize.located import Localization, Located
from harness.trace import Trace

_GENERATORS = {"torch": TORCH, "cuda": CUDA, "python": PYTHON, "numpy": NUMPY}
_KNOWN_BY_VALUE = frozenset(
    {CauseKind.GRADIENT_MISSING, CauseKind.GRADIENT_UNEXPECTED, CauseKind.STATE_KEYS}
)


def explain(
    difference: Difference,
    ordinary: Trace,
    judged: Trace,
    localization: Localization | None = None,
) -> Explanation:
    """Explain a difference between the arms.

    Args:
        difference: The difference.
        ordinary: What the ordinary arm saw.
        judged: What the judged arm saw.
        localization: What was located when the judged arm ran once more.

    Returns:
        The cause and its remedy; general ones where nothing better is known.
    """
    by_value = explain_traces(difference, ordinary, judged)
    if localization is None:
        return by_value
    return _Search(difference, ordinary, judged, localization).explain(by_value)


class _Search:
    def __init__(
        self, difference: Difference, ordinary: Trace, judged: Trace, found: Localization
    ) -> None:
        self._difference = difference
        self._ordinary = ordinary
        self._judged = judged
        self._found = found
        self._everyone = (found, *found.others)
        self._positions = {point: number for number, point in enumerate(judged.points)}
        self._position = self._positions.get(difference.point, len(self._positions))

    def explain(self, by_value: Explanation) -> Explanation:
        group = self._difference.group
        if by_value.kind in _KNOWN_BY_VALUE:
            return self._known(by_value)
        if group in ("buffers", "attributes", "rebound"):
            return self._state(by_value)
        if group == "random_state":
            return self._generator(by_value)
        if group in ("outputs", "losses"):
            return self._earliest(self._all(self._everyone)) or by_value
        if group in GRADIENTS or group in ("parameters", "momenta"):
            return self._gradient(by_value)
        return by_value

    def _known(self, by_value: Explanation) -> Explanation:
        if by_value.kind is CauseKind.GRADIENT_MISSING and self._found.reentrant:
            return because(
                CauseKind.REENTRANT,
                "the block was computed without recording gradients, and again with them in "
                "backward: this is the reentrant variant, in which a gradient reaches nothing "
                "unless a positional tensor of the block needs one",
                module=by_value.module,
                phase=by_value.phase,
                source_rank=self._found.rank,
            )
        if by_value.kind is CauseKind.GRADIENT_MISSING:
            # A gradient of zeros may as well be the right one of other values.
            earlier = self._earliest(self._reaching(self._found.replays))
            if earlier is not None and self._is_zero():
                return earlier
        return replace(by_value, source_rank=self._found.rank)

    def _is_zero(self) -> bool:
        """Tell whether the gradient that differs is there, and made of zeros."""
        seen = self._judged.points.get(self._difference.point, {})
        return seen.get(self._difference.group, {}).get(self._difference.name) is not None

    def _state(self, by_value: Explanation) -> Explanation:
        name = self._difference.name
        phase = phase_of(self._difference.point)
        own = [w for w in self._until(self._found.writes) if _is_about(w, name)]
        rebound = [w for w in own if w.kind is CauseKind.STATE_REBOUND]
        if phase == "buffer broadcast" and not rebound and self._arrived_in_broadcast():
            return self._broadcast()
        if own:
            return self._written((rebound or own)[0], by_value)
        norm = [
            write
            for write in self._found.writes
            if write.kind is CauseKind.REPEATED_UPDATE
            and owner_of(write.state or "") == (owner_of(name))
        ]
        if (
            norm
            and self._difference.group == "buffers"
            and by_value.kind is not (CauseKind.MISSING_UPDATE)
        ):
            text = (
                f"{norm[0].cause}; its forward updates it otherwise than the ordinary one as well"
            )
            return because_located(norm[0], self._found.rank, text)
        own = [w for w in self._until(self._found.forward_writes) if _is_about(w, name)]
        earlier = self._earliest(self._all((self._found,)), before=own[0] if own else None)
        if earlier is not None:
            return earlier
        if own:
            return because_located(own[0], self._found.rank)
        others = [
            w
            for other in self._found.others
            for w in self._until((*other.writes, *other.forward_writes))
            if _is_about(w, name)
        ]
        if others:
            return because_located(others[0], self._found.rank)
        if phase in ("backward", "optimizer step") and by_value.kind is CauseKind.STATE_WRITTEN:
            where = "the optimizer's step" if phase == "optimizer step" else "the backward pass"
            return because(
                CauseKind.STATE_WRITTEN,
                f"{where} left another value in {name!r} than in the ordinary arm, and no replay "
                "wrote it: look for hooks, and for a restore at the wrong time",
                module=owner_of(name),
                phase=phase,
                source_rank=self._found.rank,
            )
        return replace(by_value, source_rank=self._found.rank)

    def _written(self, write: Located, by_value: Explanation) -> Explanation:
        """Explain by a write of a replay, in the words of the values where these say more."""
        if by_value.kind is write.kind and write.kind is CauseKind.REPEATED_UPDATE:
            counter = next(
                (w for w in self._found.writes if _counts_for(w, write)),
                write,
            )
            text = (
                f"{by_value.cause}: {counter.expected} before {write.phase} of {write.forward} and "
                f"{counter.got} after it"
            )
            return because_located(write, self._found.rank, text)
        return because_located(write, self._found.rank)

    def _arrived_in_broadcast(self) -> bool:
        """Tell whether a buffer was equal in both arms before the copy between ranks."""
        before = [value_before(t, self._difference) for t in (self._ordinary, self._judged)]
        return before[0] is None or before[1] is None or bitwise_equal(before[0], before[1])

    def _broadcast(self) -> Explanation:
        name = self._difference.name
        writers = [
            write
            for other in self._found.others
            for write in self._until(other.writes)
            if _is_about(write, name)
        ]
        source = writers[0].rank if writers else 0
        why = f", where {writers[0].cause}" if writers else ""
        return because(
            CauseKind.BUFFER_SYNC,
            f"the copy of buffers at the {self._difference.point} brought {name!r} from rank "
            f"{source}{why}",
            module=owner_of(name),
            phase="buffer broadcast",
            source_rank=source,
        )

    def _generator(self, by_value: Explanation) -> Explanation:
        name = self._difference.name
        wanted = _GENERATORS.get(name, repr(name.removeprefix("generator ")))
        for draw in self._found.draws:
            if draw.state is not None and wanted in draw.state:
                return because_located(draw, self._found.rank)
        for write in self._found.forward_draws:
            if write.state is not None and wanted in write.state:
                return because_located(write, self._found.rank)
        return replace(by_value, source_rank=self._found.rank)

    def _gradient(self, by_value: Explanation) -> Explanation:
        earlier = self._earliest(
            (*self._until(self._found.forwards), *self._reaching(self._found.replays))
        )
        if earlier is not None:
            return earlier
        elsewhere = self._earliest(
            found
            for other in self._found.others
            for found in (*self._until(other.forwards), *self._until(other.replays))
        )
        if elsewhere is not None:
            return elsewhere
        phase = phase_of(self._difference.point)
        if phase == "optimizer step":
            gradient = self._gradient_before()
            if gradient is not None:
                return gradient
        if phase == "backward" and by_value.kind is CauseKind.UNKNOWN:
            missing = self._missing_gradient()
            if missing is not None:
                return missing
            several = bool(self._found.others)
            return because(
                CauseKind.REDUCTION if several else CauseKind.UNKNOWN,
                "every replay computed what its forward did"
                + (" on every rank" if several else "")
                + ", so the gradient was changed behind it: "
                + ("in DDP's reduction, or " if several else "")
                + "by a hook on a tensor, a parameter or a module",
                module=by_value.module,
                phase=phase,
                source_rank=None if several else self._found.rank,
            )
        return replace(by_value, source_rank=self._found.rank)

    def _missing_gradient(self) -> Explanation | None:
        """Explain a gradient by another one of the same backward that is missing altogether."""
        expected, got = (
            trace.points.get(self._difference.point, {}).get("gradients", {})
            for trace in (self._ordinary, self._judged)
        )
        name = next((n for n, g in expected.items() if g is not None and got.get(n) is None), None)
        if name is None:
            return None
        return because(
            CauseKind.GRADIENT_MISSING,
            f"the gradient that {name} has in the ordinary arm is missing, and with it what flows "
            "on from there: something is detached, or is not given back by the replay",
            module=owner_of(name),
            phase="backward",
            source_rank=self._found.rank,
        )

    def _gradient_before(self) -> Explanation | None:
        """Explain a parameter by its gradient, if that differed in the backward before the step."""
        name = self._difference.name
        backwards = [
            point
            for point, position in self._positions.items()
            if phase_of(point) == "backward" and position < self._position
        ]
        for point in reversed(backwards):
            for group in ("gradients", "returned_gradients"):
                expected, got = (
                    trace.points.get(point, {}).get(group, {}).get(name)
                    for trace in (self._ordinary, self._judged)
                )
                if not equal({"": {group: {name: expected}}}, {"": {group: {name: got}}}):
                    gap = describe_difference(expected, got, point=point, group=group, name=name)
                    return explain(gap, self._ordinary, self._judged, self._found)
        return None

    def _reaching(self, replays: Iterable[Located]) -> Iterator[Located]:
        """Yield replays whose gradients can reach the parameter or input that differs."""
        group, name = self._difference.group, self._difference.name
        for located in self._until(replays):
            path = owner_of(name)
            if group == "input_gradients" or name.startswith("inputs."):
                yield located
                continue
            if located.last >= self._first_use(located.forward, path):
                yield located

    def _first_use(self, forward: str, path: str) -> int:
        """Return when a module first ran in a forward, or else the nearest one around it."""
        while path and (forward, path) not in self._found.uses:
            path = owner_of(path)
        return self._found.uses.get((forward, path), 0)

    def _all(self, localizations: Iterable[Localization]) -> Iterator[Located]:
        for found in localizations:
            yield from (*found.writes, *found.replays, *found.forwards)

    def _until(self, located: Iterable[Located]) -> Iterator[Located]:
        return (item for item in located if self._position_of(item) <= self._position)

    def _earliest(
        self, located: Iterable[Located], before: Located | None = None
    ) -> Explanation | None:
        """Explain by what happened first in the program, up to the difference."""
        limit = self._position if before is None else self._position_of(before) - 1
        found = [item for item in located if self._position_of(item) <= limit]
        if not found:
            return None
        return because_located(min(found, key=self._position_of), self._found.rank)

    def _position_of(self, located: Located) -> int:
        return self._positions.get(located.point, len(self._positions))


def _counts_for(counter: Located, write: Located) -> bool:
    """Tell whether a write is that of the counter of the norm that another write is about."""
    return (
        (counter.state or "").endswith("num_batches_tracked")
        and owner_of(counter.state or "") == owner_of(write.state or "")
        and (counter.phase, counter.forward) == (write.phase, write.forward)
    )


def _is_about(located: Located, name: str) -> bool:
    state = re.sub(r"len\((.*)\)", r"\1", located.state or "")
    return state == name or state.startswith((f"{name}[", f"{name}."))
