"""Where a logical forward of the judged arm parts from the same forward of the ordinary arm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.equivalence import Difference
from harness.findings import CauseKind
from harness.localize.calls import Call, Saved
from harness.localize.diagnosis import ARMS, Describe, change_text, diagnose, told, where
from harness.localize.divergence import first_divergence
from harness.localize.located import Located
from harness.localize.state import Change, Place, value_changes
from harness.localize.values import difference, same


def forward_difference(
    ordinary: Call,
    judged: Call,
    *,
    ignored: frozenset[Place],
    allowed: float,
    describe: Describe,
    rank: int,
) -> Located | None:
    """Locate the first submodule that computes another value in the judged arm's forward.

    Args:
        ordinary: A forward of the subject in the ordinary arm.
        judged: The same forward in the judged arm.
        ignored: State that is written and not read.
        allowed: Measured noise.
        describe: Names a module.
        rank: This rank.
    """
    first, second = _without_regions(ordinary), _without_regions(judged)
    divergence = first_divergence(first, second, allowed=allowed)
    if divergence is None:
        return None
    kind, reason = diagnose(
        divergence,
        whole=(first, second),
        ignored=ignored,
        nondeterministic=allowed > 0,
        wording=ARMS,
    )
    return Located(
        rank=rank,
        point=judged.point,
        phase="forward",
        module=divergence.first.module,
        kind=kind,
        cause=f"in {judged.point}, {told(divergence, describe)}: {reason}",
        **where(divergence.what, divergence.difference),
        forward=judged.point,
        order=divergence.second.order,
    )


def forward_writes(ordinary: Call, judged: Call, describe: Describe, rank: int) -> list[Located]:
    """Locate state that the judged arm's forward leaves other than the ordinary arm's does.

    Args:
        ordinary: A forward of the subject in the ordinary arm.
        judged: The same forward in the judged arm.
        describe: Names a module.
        rank: This rank.
    """
    first, second = _without_regions(ordinary), _without_regions(judged)
    found: dict[Place, Located] = {}
    for one, other in _pairs(first, second):
        for change in _written_otherwise(one, other):
            if change.place not in found:
                found[change.place] = _located_write(change, other, describe, rank)
    return list(found.values())


def forward_draws(ordinary: Call, judged: Call, describe: Describe, rank: int) -> list[Located]:
    """Locate generators that the judged arm's forward leaves other than the ordinary arm's does.

    Args:
        ordinary: A forward of the subject in the ordinary arm.
        judged: The same forward in the judged arm.
        describe: Names a module.
        rank: This rank.
    """
    found: dict[str, Located] = {}
    for one, other in _pairs(_without_regions(ordinary), _without_regions(judged)):
        if one.exit is None or other.exit is None:
            continue
        for name, state in one.exit.generators.items():
            began_alike = one.entry.generators.get(name) == other.entry.generators.get(name)
            if began_alike and other.exit.generators.get(name, state) != state:
                found.setdefault(
                    name,
                    Located(
                        rank=rank,
                        point=other.point,
                        phase="forward",
                        module=other.module,
                        kind=CauseKind.RANDOM_STATE,
                        cause=f"in {other.point}, {describe(other.module)} drew other random "
                        f"numbers from {name} than in the ordinary arm",
                        **where("state", Difference("", "", name, "another state", "its state")),
                        forward=other.point,
                        order=other.order,
                        state=name,
                    ),
                )
    return list(found.values())


def _located_write(change: Change, call: Call, describe: Describe, rank: int) -> Located:
    place = change.place
    before = call.entry.state.get(place)
    after = call.exit.state.get(place) if call.exit is not None else None
    kept = place in call.entry.state and same(before, after)
    did = "did not write" if kept else "wrote other values into"
    values = change_text(change, "in the ordinary arm", "here")
    return Located(
        rank=rank,
        point=call.point,
        phase="forward",
        module=call.module,
        kind=CauseKind.MISSING_UPDATE if kept else CauseKind.STATE_WRITTEN,
        cause=f"in {call.point}, {describe(call.module)} {did} {place.kind} {place.path!r} "
        f"({values})",
        **where("state", difference(place.path, change.before, change.after)),
        forward=call.point,
        order=call.order,
        state=place.path,
    )


def _written_otherwise(one: Call, other: Call) -> list[Change]:
    """Return what two calls left different though they started from the same."""
    if one.exit is None or other.exit is None:
        return []
    before = {change.place for change in value_changes(one.entry.state, other.entry.state)}
    after = value_changes(one.exit.state, other.exit.state)
    return [change for change in after if change.place not in before]


def _pairs(first: Call, second: Call) -> Iterator[tuple[Call, Call]]:
    """Yield calls of two runs that correspond, inner ones first, while both run alike."""
    inner = ([e for e in call.events if isinstance(e, Call)] for call in (first, second))
    for one, other in zip(*inner, strict=False):
        if (one.kind, one.module) != (other.kind, other.module):
            break
        yield from _pairs(one, other)
    yield first, second


def _without_regions(call: Call) -> Call:
    """Copy a call as if nothing were checkpointed in it: without regions, wrappers and tensors."""
    events: list[Call | Saved] = []
    for event in call.events:
        if isinstance(event, Call):
            inner = _without_regions(event)
            is_wrapped = inner.kind == "module" and inner.module == call.module
            if inner.kind == "region" or (call.kind == "module" and is_wrapped):
                events += inner.events
            else:
                events.append(inner)
    return replace(call, events=events)
