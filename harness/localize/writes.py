"""State and generators that replays left other than they found them, and who wrote them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from harness.equivalence import Difference
from harness.findings import CauseKind
from harness.localize.calls import Call, Replay
from harness.localize.diagnosis import Describe, change_text, where
from harness.localize.located import Located
from harness.localize.state import Change, Place, State, changes
from harness.localize.values import Held, Leaf, difference, same

_COUNTER = "num_batches_tracked"


def replay_writes(
    replay: Replay, modules: dict[str, nn.Module], describe: Describe, rank: int
) -> Iterator[Located]:
    """Yield what a replay left changed.

    Args:
        replay: The replay.
        modules: Path -> module, of the subject.
        describe: Names a module.
        rank: This rank.
    """
    if replay.before is None or replay.after is None:
        return
    found = changes(replay.before.state, replay.after.state)
    for change in found:
        writer = _innermost(replay.call, partial(_wrote, change.place))
        kind = _kind(change, found, modules)
        yield Located(
            rank=rank,
            point=replay.point,
            phase=f"replay {replay.number}",
            module=writer.module if writer is not None else change.place.module,
            kind=kind,
            cause=_write_text(replay, change, kind, writer, describe),
            **where("state", difference(change.place.path, change.before, change.after)),
            forward=replay.forward.point,
            order=writer.order if writer is not None else replay.forward.order,
            state=change.place.path,
        )


def replay_touches(replay: Replay, describe: Describe, rank: int) -> Iterator[Located]:
    """Yield buffers and parameters that a replay wrote in place with the value they had.

    Autograd counts such a write like any other.

    Args:
        replay: The replay.
        describe: Names a module.
        rank: This rank.
    """
    if replay.before is None or replay.after is None:
        return
    for place, before in replay.before.state.items():
        after = replay.after.state.get(place)
        if not isinstance(before, Held) or not isinstance(after, Held):
            continue
        if before.is_same_object(after) and before.version != after.version:
            yield Located(
                rank=rank,
                point=replay.point,
                phase=f"replay {replay.number}",
                module=place.module,
                kind=CauseKind.SAVED_TENSOR_WRITTEN,
                cause=f"replay {replay.number} of {replay.forward.point} wrote {place.kind} "
                f"{place.path!r} of {describe(place.module)} in place (version {before.version} "
                f"before, {after.version} after)",
                **where("state", Difference("", "", place.path, before.version, after.version)),
                forward=replay.forward.point,
                order=replay.forward.order,
                state=place.path,
            )


def replay_draws(replay: Replay, describe: Describe, rank: int) -> Iterator[Located]:
    """Yield the generators that a replay left in another state."""
    if replay.before is None or replay.after is None:
        return
    for name, state in replay.before.generators.items():
        if replay.after.generators.get(name, state) == state:
            continue
        drawer = _innermost(replay.call, partial(_drew, name))
        who = describe(drawer.module if drawer is not None else replay.forward.module)
        yield Located(
            rank=rank,
            point=replay.point,
            phase=f"replay {replay.number}",
            module=drawer.module if drawer is not None else replay.forward.module,
            kind=CauseKind.RANDOM_STATE,
            cause=f"replay {replay.number} of {replay.forward.point} left {name} in another state: "
            f"{who} drew from it and it was not put back",
            **where("state", Difference("", "", name, "its state", "another state")),
            forward=replay.forward.point,
            order=drawer.order if drawer is not None else replay.forward.order,
            state=name,
        )


def _drew(name: str, call: Call) -> bool:
    end = call.exit
    return end is not None and call.entry.generators.get(name) != end.generators.get(name)


def _write_text(
    replay: Replay, change: Change, kind: CauseKind, writer: Call | None, describe: Describe
) -> str:
    place = change.place
    if writer is not None:
        who = describe(writer.module)
    else:
        who = f"what surrounds the block in replay {replay.number}"
    did = "put another tensor in the place of" if kind is CauseKind.STATE_REBOUND else "wrote"
    return (
        f"replay {replay.number} of {replay.forward.point}: {who} {did} {place.kind} "
        f"{place.path!r} ({change_text(change)})"
    )


def _kind(change: Change, found: list[Change], modules: dict[str, nn.Module]) -> CauseKind:
    if change.rebound:
        return CauseKind.STATE_REBOUND
    if isinstance(modules.get(change.place.module), _NormBase):
        counter = Place("buffer", change.place.module, _COUNTER)
        for other in found:
            if other.place == counter:
                more = _count(other.after) > _count(other.before)
                return CauseKind.REPEATED_UPDATE if more else CauseKind.MISSING_UPDATE
    return CauseKind.STATE_WRITTEN


def _count(leaf: Leaf) -> float:
    return float(leaf.value) if isinstance(leaf, Held) else 0.0


def _wrote(place: Place, call: Call) -> bool:
    end = call.exit
    return end is not None and _changed(call.entry.state, end.state, place)


def _changed(before: State, after: State, place: Place) -> bool:
    if place not in before or place not in after:
        return (place in before) != (place in after)
    first, second = before[place], after[place]
    moved = Change(place, first, second).rebound
    return moved or not same(first, second)


def _innermost(call: Call | None, passes: Callable[[Call], bool]) -> Call | None:
    """Return the first call in execution order that passes while none in it does."""
    if call is None:
        return None
    for event in call.events:
        if isinstance(event, Call):
            inner = _innermost(event, passes)
            if inner is not None:
                return inner
    return call if passes(call) else None
