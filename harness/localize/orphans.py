"""Replays that do not go through torch's non-reentrant checkpoint, matched with their forwards.

The reentrant variant and checkpoint wrappers of other libraries call modules again in backward
without saying which forward they replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from harness.localize.calls import Call, Recording, Replay
from harness.localize.state import State
from harness.localize.values import first_difference


def adopt_orphans(recording: Recording, orphans: Sequence[Call]) -> None:
    """Make replays of the calls that ran in backward by themselves.

    Each replays an earlier call of the same module in a logical forward: the next one in the
    forward of its predecessor, if that fits; else, among those that were replayed least in this
    backward, the newest with equal inputs, or the newest, since backward runs in the reverse order.
    Calls that follow each other in one forward are one replay.

    Args:
        recording: The recording; its replays are added to.
        orphans: Calls that began while a backward pass ran and nothing else did.
    """
    matching = _Matching(recording)
    group: list[tuple[Call, Call]] = []
    for call in orphans:
        follower = matching.follower(group[-1][0], call) if group else None
        if follower is not None and group[-1][1].point == call.point:
            group.append((follower, call))
            continue
        matching.adopt(group)
        forward = matching.forward_of(call)
        group = [] if forward is None else [(forward, call)]
    matching.adopt(group)


class _Matching:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._calls: dict[tuple[str, str], list[Call]] = {}
        self._around: dict[Call, Call] = {}
        self._here: Counter[tuple[str, Call]] = Counter()
        self._total: Counter[Call] = Counter()
        for root in recording.forwards:
            for call in root.walk():
                self._calls.setdefault((call.kind, call.module), []).append(call)
                self._around.update((e, call) for e in call.events if isinstance(e, Call))

    def follower(self, forward: Call, call: Call) -> Call | None:
        """Return the call behind a forward, inside the same one, if another one can replay it."""
        around = self._around.get(forward)
        behind = [
            event
            for event in (around.events if around is not None else [])
            if isinstance(event, Call) and event.order > forward.order
        ]
        fits = behind and (behind[0].kind, behind[0].module) == (call.kind, call.module)
        return behind[0] if fits else None

    def forward_of(self, call: Call) -> Call | None:
        """Return the forward that a call replays, if there is one."""
        known = self._calls.get((call.kind, call.module), [])
        candidates = [forward for forward in known if forward.order < call.order]
        if not candidates:
            return None
        fewest = min(self._here[call.point, forward] for forward in candidates)
        due = [f for f in candidates if self._here[call.point, f] == fewest]
        equal = [f for f in due if first_difference(f.inputs, call.inputs) is None]
        return (equal or due)[-1]

    def adopt(self, group: list[tuple[Call, Call]]) -> None:
        """Make one replay of calls that follow each other in one forward."""
        if not group:
            return
        for forward, call in group:
            self._here[call.point, forward] += 1
        first = group[0][0]
        self._total[first] += 1
        forward, call = group[0]
        if len(group) > 1:
            forward = _joined([forward for forward, _ in group], self._around[first])
            call = replace(
                _joined([call for _, call in group], self._around[first]), point=call.point
            )
        replay = Replay(forward, self._total[first], call.point, call)
        replay.before, replay.after = call.entry, call.exit
        self._recording.replays.append(replay)


def _joined(calls: list[Call], around: Call) -> Call:
    """Return the part of a surrounding call that consists of some calls in it."""
    first: State = {}
    last: State = {}
    for call in calls:
        first = {**call.entry.state, **first}
        if call.exit is not None:
            last = {**last, **call.exit.state}
    end = calls[-1].exit
    return replace(
        around,
        entry=replace(calls[0].entry, state=first),
        exit=None if end is None else replace(end, state=last),
        events=list(calls),
        outputs=None,
    )
