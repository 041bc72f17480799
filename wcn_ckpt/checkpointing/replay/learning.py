"""Which tensors of a boundary a forward writes, found by watching it.

Version counters are not enough: `F.batch_norm` writes running statistics without moving them. So
the values on entry are copied and compared on exit, at the 1st, 2nd, 4th, 8th, ... forward, and in
between identities and versions are compared, which costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wcn_ckpt.checkpointing.replay.kinds import Kind, kind_table
from wcn_ckpt.checkpointing.replay.known import frozen_parameters, only_writes_statistics
from wcn_ckpt.checkpointing.replay.redirect import Holder, KeptHolder, entry_values
from wcn_ckpt.checkpointing.replay.values import same_bits, version

LARGEST_FROZEN_PARAMETER = 1 << 22
"""Elements of a frozen parameter up to which its value is compared; of larger ones the version."""


@dataclasses.dataclass(frozen=True)
class Watched:
    """Entries of a module's `_buffers` or `_parameters`, as they were when watching began.

    Args:
        module: the module.
        holder: the dictionary.
        entries: what is watched, by name.
        versions: version counters, by name.
        values: copies, by name, where values are compared.
        whole: whether an entry that appears counts as written.
        known: what was known of the module then.
    """

    module: nn.Module
    holder: Holder
    entries: dict[str, Any]
    versions: dict[str, int]
    values: dict[str, Tensor]
    whole: bool
    known: dict[str, Kind]

    def written(self) -> dict[str, Kind]:
        """Kinds of the entries that were written since; the others are left out."""
        kinds = {}
        for name in {**self.entries, **self.holder} if self.whole else self.entries:
            before, now = self.entries.get(name), self.holder.get(name)
            if name not in self.entries or name not in self.holder or before is not now:
                kinds[name] = Kind.REBOUND
            elif now is not None and self._changed(name, now):
                kinds[name] = Kind.IN_PLACE
        return kinds

    def _changed(self, name: str, now: Tensor) -> bool:
        if name not in self.versions:
            return False
        value = self.values.get(name)
        return version(now) != self.versions[name] or (
            value is not None and not same_bits(now, value)
        )


def watch(
    modules: Iterable[nn.Module], managed_by_fsdp: Container[nn.Module], compare_values: bool
) -> list[Watched]:
    """Begin to watch the buffers and frozen parameters of modules.

    Args:
        modules: the modules.
        managed_by_fsdp: those whose parameters FSDP swaps meanwhile; only buffers are watched.
        compare_values: copy values; without, only identities and versions are compared.
    """
    watched = []
    for module in modules:
        may_register = compare_values and not type(module).__module__.startswith("torch.")
        if (module._buffers or may_register) and not (
            only_writes_statistics(module) and module.training
        ):
            watched.append(_watch(module, module._buffers, dict(module._buffers), whole=True))
        frozen = frozen_parameters(module)
        if frozen and module not in managed_by_fsdp:
            watched.append(_watch(module, module._parameters, frozen, whole=False))
    if compare_values:
        _copy_values(watched)
    return watched


def held_in_attributes(boundary: nn.Module) -> list[nn.Module]:
    """Modules that the modules of a tree hold in plain attributes, where nothing registers them."""
    values = (value for module in boundary.modules() for value in vars(module).values())
    return [item for value in values for item in _items(value) if isinstance(item, nn.Module)]


def watch_unregistered(
    boundary: nn.Module, held: Iterable[nn.Module], found: Iterable[nn.Module]
) -> list[Watched]:
    """Begin to watch training norm layers that a boundary may run and that are not below it.

    It may hold a module that a forward never runs, a parent for instance: only one whose statistics
    are written belongs to the boundary.

    Args:
        boundary: the boundary.
        held: what it holds, or is given as an argument.
        found: norm layers that were found so before.
    """
    known = {*boundary.modules(), *found}
    inside = dict.fromkeys(module for item in held for module in item.modules())
    norms = [m for m in inside if m not in known and m.training and only_writes_statistics(m)]
    watched = [_watch(m, m._buffers, dict(m._buffers), whole=True) for m in norms]
    _copy_values(watched)
    return watched


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list | tuple) else (value,)


def _copy_values(watched: Iterable[Watched]) -> None:
    compared = [(e, name) for e in watched for name in e.versions if _is_comparable(e, name)]
    with torch._C.DisableTorchFunction():  # a boundary around this one may look for reads
        copies = entry_values(entry.entries[name] for entry, name in compared)
    for (entry, name), copy in zip(compared, copies, strict=True):
        entry.values[name] = copy


def _is_comparable(entry: Watched, name: str) -> bool:
    tensor = entry.entries[name]
    return tensor.grad_fn is None and (entry.whole or tensor.numel() <= LARGEST_FROZEN_PARAMETER)


def _watch(module: nn.Module, holder: Holder, entries: dict[str, Any], whole: bool) -> Watched:
    versions = {n: version(t) for n, t in entries.items() if t is not None and not is_lazy(t)}
    return Watched(module, holder, entries, versions, {}, whole, dict(kind_table.of(module)))


@dataclasses.dataclass(frozen=True)
class News:
    """A tensor that was found to be written.

    Args:
        watched: where it was found.
        name: its name in the holder.
        kind: how it was written.
        late: whether earlier forwards left it alone.
    """

    watched: Watched
    name: str
    kind: Kind
    late: bool


def learn(watched: Iterable[Watched], kept: Iterable[KeptHolder]) -> list[News]:
    """Record in the table of kinds what was written and what was not.

    Args:
        watched: what was watched.
        kept: what the caller keeps already.

    Returns:
        What was written and not kept.
    """
    already = {(id(holder), name) for holder, kinds in kept for name in kinds}
    news = []
    for entry in watched:
        written = entry.written()
        for name in {**entry.entries, **written}:
            kind = written.get(name, Kind.CLEAN)
            kind_table.learn(entry.module, name, kind)
            if kind is not Kind.CLEAN and (id(entry.holder), name) not in already:
                news.append(News(entry, name, kind, late=entry.known.get(name) is Kind.CLEAN))
    return news


def learned_since(watched: Iterable[Watched], kept: Iterable[KeptHolder]) -> list[News]:
    """What is known by now to be written, and is not kept.

    For a boundary inside another one: the outer forward may write what the inner one only reads.
    """
    already = {(id(holder), name) for holder, kinds in kept for name in kinds}
    return [
        News(entry, name, kind, late=False)
        for entry in watched
        for name, kind in kind_table.of(entry.module).items()
        if kind is not Kind.CLEAN and name in entry.entries
        if (id(entry.holder), name) not in already
    ]
