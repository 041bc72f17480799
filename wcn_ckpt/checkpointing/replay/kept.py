"""State that a replay must find as its logical forward found it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from wcn_ckpt.checkpointing.replay.kinds import Kind
from wcn_ckpt.checkpointing.replay.learning import News
from wcn_ckpt.checkpointing.replay.redirect import Holder, KeptHolder, entry_values, set_entries
from wcn_ckpt.checkpointing.replay.values import version

_READ = (Kind.IN_PLACE, Kind.REBOUND)

OriginalEntries = tuple[Holder, dict[str, Any]]
"""A holder, and what it held before a replay."""


@dataclasses.dataclass(frozen=True)
class EntryState:
    """One holder as a logical forward found it.

    A tensor that is written is copied, also one that is replaced: the forward after that may write
    it in place. One that carries a graph is kept by reference, since a copy would lose the graph.

    Args:
        holder: the dictionary.
        entries: its entries, with copies of those that are written.
        copied: names of the copies.
        overwritten: names whose value means nothing.
        versions: version counters of the entries kept by reference.
    """

    holder: Holder
    entries: dict[str, Any]
    copied: list[str]
    overwritten: list[str]
    versions: dict[str, int]

    def moved(self) -> str | None:
        """The name of an entry kept by reference that was changed in place since, if any."""
        for name, old in self.versions.items():
            if version(self.entries[name]) != old:
                return name
        return None


def capture(kept: Iterable[KeptHolder]) -> list[EntryState]:
    """Keep the entry values of every holder; what is tied in the module is tied in the copies."""
    states: list[EntryState] = []
    to_copy: list[tuple[EntryState, str]] = []
    for holder, kinds in kept:
        entries = dict(holder)
        tensors = {name: t for name, t in entries.items() if t is not None}
        state = EntryState(
            holder,
            entries,
            [n for n in tensors if kinds.get(n) in _READ and tensors[n].grad_fn is None],
            [n for n in tensors if kinds.get(n) is Kind.WRITTEN],
            {n: version(t) for n, t in tensors.items() if n in kinds and t.grad_fn is not None},
        )
        states.append(state)
        to_copy += [(state, name) for name in state.copied]
    copies = entry_values(state.entries[name] for state, name in to_copy)
    for (state, name), copy in zip(to_copy, copies, strict=True):
        state.entries[name] = copy
    return states


def install(states: Iterable[EntryState], originals: list[OriginalEntries]) -> None:
    """Make the modules hold what the logical forward found, on fresh copies.

    Args:
        states: what `capture` gave; it is not used up, a retained graph installs it again.
        originals: takes what the holders held, before it is replaced.
    """
    fresh = [
        state.entries[name] if name in state.copied else state.holder[name]
        for state in states
        for name in (*state.copied, *state.overwritten)
    ]
    copies = iter(entry_values(fresh))
    for state in states:
        entries = dict(state.entries)
        for name in (*state.copied, *state.overwritten):
            entries[name] = next(copies)
        originals.append((state.holder, dict(state.holder)))
        set_entries(state.holder, entries)


def put_back_entries(originals: list[OriginalEntries]) -> None:
    """Make every holder hold what it held before `install`, the latest first."""
    for holder, entries in reversed(originals):
        set_entries(holder, entries)


def adopt(states: list[EntryState], news: News) -> bool:
    """Add to captured states a tensor that the same forward was seen to write.

    Args:
        states: what `capture` gave at the start of the forward.
        news: what was written.

    Returns:
        Whether its entry value was kept. If not, its present value stands in for it, so that at
        least the original is not written again.
    """
    watched, name = news.watched, news.name
    holder = watched.holder
    state = next((s for s in states if s.holder is holder), None)
    if state is None:
        entries = dict(watched.entries if watched.whole else holder)
        state = EntryState(holder, entries, [], [], {})
        states.append(state)
    if name not in watched.entries:
        state.entries.pop(name, None)
        return True
    value = watched.values.get(name)
    if value is not None:
        state.entries[name] = value
        if name not in state.copied:
            state.copied.append(name)
    elif news.kind is Kind.REBOUND:
        state.entries[name] = watched.entries[name]
        if name in watched.versions:
            state.versions[name] = watched.versions[name]
    else:
        state.entries[name] = entry_values([holder[name]])[0]
        state.copied.append(name)
        return False
    return True
