"""Replays that do not go through torch's non-reentrant checkpoint, matched with their forwards.

The reentrant variant and checkpoint wrappers of other libraries call modules again in backward
without saying which forward they replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.localize.calls import Call, Recording, Replay
from harness.localize.values import first_difference


def adopt_orphans(recording: Recording, orphans: Sequence[Call]) -> None:
    """Make a replay of each call that ran in backward by itself.

    It replays an earlier call of the same module in a logical forward: among those that were
    replayed least in this backward, the newest with equal inputs, or else the newest, since
    backward runs in the reverse order.

    Args:
        recording: The recording; its replays are added to.
        orphans: Calls that began while a backward pass ran and nothing else did.
    """
    forwards: dict[tuple[str, str], list[Call]] = {}
    for root in recording.forwards:
        for call in root.walk():
            forwards.setdefault((call.kind, call.module), []).append(call)
    totals: Counter[int] = Counter()
    here: Counter[tuple[str, int]] = Counter()
    for call in orphans:
        candidates = [
            forward
            for forward in forwards.get((call.kind, call.module), [])
            if forward.order < call.order
        ]
        if not candidates:
            continue
        fewest = min(here[call.point, forward.order] for forward in candidates)
        due = [f for f in candidates if here[call.point, f.order] == fewest]
        equal = [f for f in due if first_difference(f.inputs, call.inputs) is None]
        forward = (equal or due)[-1]
        here[call.point, forward.order] += 1
        totals[forward.order] += 1
        replay = Replay(forward, totals[forward.order], call.point, call)
        replay.before, replay.after = call.entry, call.exit
        recording.replays.append(replay)
