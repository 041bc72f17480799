"""Compares the recordings of two arms and says what went wrong where."""

from __future__ import annotations

from itertools import pairwise

import torch.distributed as dist
from torch import nn

from harness.localize.arms import forward_difference, forward_draws, forward_writes
from harness.localize.calls import Recording, Replay
from harness.localize.diagnosis import Describe, diagnose, told, where
from harness.localize.divergence import first_divergence
from harness.localize.located import Localization, Located
from harness.localize.recorder import named_modules
from harness.localize.state import Place, value_changes, written_not_read
from harness.localize.writes import replay_draws, replay_touches, replay_writes


def locate(
    ordinary: Recording | None,
    judged: Recording,
    subject: nn.Module,
    rank: int,
    *,
    noise: float,
    broadcasts: bool,
) -> Localization:
    """Find where replays part from their forwards, and forwards from the ordinary arm's.

    Args:
        ordinary: What the ordinary arm did; None where it was not recorded.
        judged: What the judged arm did.
        subject: The subject, as the judged arm left it.
        rank: This rank.
        noise: Largest difference of the ordinary arm from itself.
        broadcasts: Whether buffers are copied between ranks when a forward starts.

    Returns:
        What was found on this rank.
    """
    modules = dict(reversed(list(named_modules(subject))))
    search = _Search(judged, modules, rank, noise, _synced(judged) if broadcasts else frozenset())
    forwards = (
        [] if ordinary is None else list(zip(ordinary.forwards, judged.forwards, strict=False))
    )
    located = [
        forward_difference(
            *pair,
            ignored=search.ignored,
            allowed=noise,
            describe=search.describe,
            rank=rank,
        )
        for pair in forwards
    ]
    return Localization(
        rank=rank,
        forwards=tuple(found for found in located if found is not None),
        forward_writes=tuple(
            found for pair in forwards for found in forward_writes(*pair, search.describe, rank)
        ),
        forward_draws=tuple(
            found for pair in forwards for found in forward_draws(*pair, search.describe, rank)
        ),
        replays=search.replays(),
        writes=tuple(
            found
            for replay in judged.replays
            for found in replay_writes(replay, modules, search.describe, rank)
        ),
        touches=tuple(
            found
            for replay in judged.replays
            for found in replay_touches(replay, search.describe, rank)
        ),
        draws=tuple(
            found
            for replay in judged.replays
            for found in replay_draws(replay, search.describe, rank)
        ),
        uses=_uses(judged),
        reentrant=any(_is_reentrant(replay) for replay in judged.replays),
    )


def share(localization: Localization) -> Localization:
    """Tell the other ranks what was found on this one, and add what they found; a collective.

    Args:
        localization: What was found on this rank.
    """
    everyone: list[Localization] = [localization] * dist.get_world_size()
    dist.all_gather_object(everyone, localization)
    others = tuple(other for other in everyone if other.rank != localization.rank)
    return localization.with_others(others)


class _Search:
    def __init__(
        self,
        judged: Recording,
        modules: dict[str, nn.Module],
        rank: int,
        noise: float,
        synced: frozenset[Place],
    ) -> None:
        self._judged = judged
        self._rank = rank
        self._noise = noise
        self._synced = synced
        self._modules = modules
        self.ignored: frozenset[Place] = written_not_read(modules.items())
        self.describe: Describe = self._described

    def replays(self) -> tuple[Located, ...]:
        """Return where replays part from their forwards, in the order of the forwards."""
        for allowed, thorough in ((self._noise, False), (0.0, False), (0.0, True)):
            found = [
                located
                for replay in self._judged.replays
                if (located := self._replay(replay, allowed, thorough)) is not None
            ]
            if found:
                return tuple(sorted(found, key=lambda located: located.order))
        return ()

    def _replay(self, replay: Replay, allowed: float, thorough: bool) -> Located | None:
        if replay.call is None:
            return None
        divergence = first_divergence(
            replay.forward,
            replay.call,
            allowed=allowed,
            skip=self.ignored,
            thorough=thorough,
        )
        if divergence is None:
            return None
        kind, reason = diagnose(
            divergence,
            whole=(replay.forward, replay.call),
            ignored=self.ignored,
            nondeterministic=self._noise > 0,
            synced=self._synced,
        )
        return Located(
            rank=self._rank,
            point=replay.point,
            phase=f"replay {replay.number}",
            module=divergence.first.module,
            kind=kind,
            cause=f"replay {replay.number} of {replay.forward.point}: "
            f"{told(divergence, self.describe)}: {reason}",
            **where(divergence.what, divergence.difference),
            forward=replay.forward.point,
            order=divergence.first.order,
            last=max(call.order for call in replay.forward.walk()),
        )

    def _described(self, path: str) -> str:
        kind = type(self._modules[path]).__name__ if path in self._modules else "module"
        return f"{kind} {path!r}" if path else kind


def _synced(judged: Recording) -> frozenset[Place]:
    """Return the buffers that changed between the end of a forward and the start of the next."""
    return frozenset(
        change.place
        for one, other in pairwise(judged.forwards)
        if one.exit is not None
        for change in value_changes(one.exit.state, other.entry.state)
        if change.place.kind == "buffer"
    )


def _uses(judged: Recording) -> dict[tuple[str, str], int]:
    uses: dict[tuple[str, str], int] = {}
    for root in judged.forwards:
        for call in root.walk():
            uses.setdefault((call.point, call.module), call.order)
    return uses


def _is_reentrant(replay: Replay) -> bool:
    """Tell whether a forward ran without recording gradients and its replay with."""
    call = replay.call
    return (
        call is not None
        and call.entry.records_gradients
        and not replay.forward.entry.records_gradients
    )
