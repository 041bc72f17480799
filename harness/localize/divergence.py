"""Where two runs of one computation part: the first difference, in execution order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.equivalence import Difference
from harness.localize.calls import Call, Moment, Saved
from harness.localize.state import Place
from harness.localize.values import Leaves, difference, first_difference

What = Literal["input", "output", "saved tensor", "order"]


@dataclass(frozen=True, eq=False)
class Divergence:
    """The first difference between a computation and its repetition."""

    first: Call
    """The computation whose own code parts from its repetition."""
    second: Call
    """Its repetition."""
    what: What
    """What differs first: an input, an output, a tensor saved for backward, or what is called."""
    difference: Difference
    """How it differs."""
    before: tuple[Moment, Moment]
    """The last moment, in either run, up to which nothing differed."""
    after: Moment | None
    """The first moment in ``first`` behind the difference; None where none was recorded."""
    child: str | None = None
    """Path of the submodule whose input differs, or that is not the one called before."""


def first_divergence(
    first: Call,
    second: Call,
    *,
    allowed: float = 0.0,
    skip: Collection[Place] = (),
    thorough: bool = False,
) -> Divergence | None:
    """Find where a repetition of a computation parts from it.

    Submodules are entered in the order in which they ran, so what is found is in the innermost
    computation whose inputs are the same. A repetition that was stopped early is compared as far
    as it goes.

    Args:
        first: The computation.
        second: Its repetition.
        allowed: Largest absolute difference that counts as none.
        skip: State that is not compared where it was saved for backward.
        thorough: Compare as well what mostly does no harm: numbers and containers among the
            inputs, which may be caches, and buffers that were saved for backward, which are often
            written only.

    Returns:
        The first divergence; None where there is none.
    """
    return _Walk(allowed, skip, thorough).compare(first, second)


class _Walk:
    def __init__(self, allowed: float, skip: Collection[Place], thorough: bool) -> None:
        self._allowed = allowed
        self._skip = skip
        self._thorough = thorough

    def compare(self, first: Call, second: Call) -> Divergence | None:
        start = (first.entry, second.entry)
        gap = self._gap(first.inputs, second.inputs)
        if gap is not None:
            return Divergence(first, second, "input", gap, start, None)
        return self._inside(first, second, start)

    def _inside(
        self, first: Call, second: Call, before: tuple[Moment, Moment]
    ) -> Divergence | None:
        saved = 0
        for number, event in enumerate(second.events):
            if number >= len(first.events):
                return self._other_order(first, second, number, before)
            expected = first.events[number]
            if isinstance(expected, Saved) and isinstance(event, Saved):
                gap = self._saved_gap(expected, event, f"[{saved}]")
                if gap is not None:
                    after = _next_moment(first.events[number:], first)
                    return Divergence(first, second, "saved tensor", gap, before, after)
                saved += 1
            elif (
                isinstance(expected, Call)
                and isinstance(event, Call)
                and (expected.kind, expected.module) == (event.kind, event.module)
            ):
                gap = self._gap(expected.inputs, event.inputs)
                if gap is not None:
                    return Divergence(
                        first, second, "input", gap, before, expected.entry, expected.module
                    )
                found = self._inside(expected, event, (expected.entry, event.entry))
                if found is not None:
                    return found
                if expected.exit is not None and event.exit is not None:
                    before = (expected.exit, event.exit)
            else:
                return self._other_order(first, second, number, before)
        if not second.stopped and len(first.events) > len(second.events):
            return self._other_order(first, second, len(second.events), before)
        if first.outputs is not None and second.outputs is not None:
            gap = self._gap(first.outputs, second.outputs)
            if gap is not None:
                return Divergence(first, second, "output", gap, before, first.exit)
        return None

    def _gap(self, first: Leaves, second: Leaves) -> Difference | None:
        return first_difference(
            first, second, allowed=self._allowed, tensors_only=not self._thorough
        )

    def _saved_gap(self, first: Saved, second: Saved, number: str) -> Difference | None:
        place = first.place
        if place in self._skip or (_is_buffer(place) and not self._thorough):
            return None
        name = number if place is None else place.path
        return first_difference({name: first.leaf}, {name: second.leaf}, allowed=self._allowed)

    def _other_order(
        self, first: Call, second: Call, number: int, before: tuple[Moment, Moment]
    ) -> Divergence:
        expected, got = (_event_text(call.events, number) for call in (first, second))
        gap = Difference("", "", "call order", expected, got)
        after = _next_moment(first.events[number:], first)
        event = second.events[number] if number < len(second.events) else None
        child = event.module if isinstance(event, Call) else None
        return Divergence(first, second, "order", gap, before, after, child)


def _is_buffer(place: Place | None) -> bool:
    return place is not None and place.kind == "buffer"


def _event_text(events: Sequence[Call | Saved], number: int) -> str:
    if number >= len(events):
        return "nothing more"
    event = events[number]
    if isinstance(event, Call):
        return f"a call of {event.module!r}"
    return f"a saved {difference('', event.leaf, None).expected}"


def _next_moment(events: Sequence[Call | Saved], call: Call) -> Moment | None:
    for event in events:
        if isinstance(event, Call):
            return event.entry
    return call.exit
