"""Which tensors of a boundary a forward writes, found by watching it.

Version counters are not enough: `F.batch_norm` writes running statistics without moving them. So
the values on entry are copied and compared on exit, at the 1st, 2nd, 4th, 8th, ... forward, and in
between identities and versions are compared, which costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wcn_ckpt.checkpointing.replay.kinds import Kind, kind_table
from wcn_ckpt.checkpointing.replay.known import only_writes_statistics
from wcn_ckpt.checkpointing.replay.redirect import Holder, entry_values
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
    """

    module: nn.Module
    holder: Holder
    entries: dict[str, Any]
    versions: dict[str, int]
    values: dict[str, Tensor]
    whole: bool

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


def watch(modules: Iterable[nn.Module], compare_values: bool) -> list[Watched]:
    """Begin to watch the buffers and frozen parameters of modules.

    Args:
        modules: the modules.
        compare_values: copy values; without, only identities and versions are compared.
    """
    found: list[tuple[nn.Module, Holder, dict[str, Any], bool]] = []
    for module in modules:
        if module._buffers and not (only_writes_statistics(module) and module.training):
            found.append((module, module._buffers, dict(module._buffers), True))
        frozen = {n: p for n, p in module._parameters.items() if _is_frozen(p)}
        if frozen:
            found.append((module, module._parameters, frozen, False))
    return [_watch(*entry, compare_values) for entry in found]


def _is_frozen(parameter: Tensor | None) -> bool:
    return parameter is not None and not parameter.requires_grad


def _watch(
    module: nn.Module, holder: Holder, entries: dict[str, Any], whole: bool, compare_values: bool
) -> Watched:
    tensors = {n: t for n, t in entries.items() if t is not None and not is_lazy(t)}
    compared = {
        name: tensor
        for name, tensor in tensors.items()
        if compare_values
        and tensor.grad_fn is None
        and (whole or tensor.numel() <= LARGEST_FROZEN_PARAMETER)
    }
    return Watched(
        module,
        holder,
        entries,
        {name: version(tensor) for name, tensor in tensors.items()},
        dict(zip(compared, entry_values(compared.values()), strict=True)),
        whole,
    )


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


def learn(watched: Iterable[Watched]) -> list[News]:
    """Record in the table of kinds what was written and what was not; return what is new."""
    news = []
    for entry in watched:
        known = dict(kind_table.of(entry.module))
        written = entry.written()
        for name in {**entry.entries, **written}:
            kind = written.get(name, Kind.CLEAN)
            kind_table.learn(entry.module, name, kind)
            if kind is not Kind.CLEAN and known.get(name, Kind.CLEAN) is Kind.CLEAN:
                news.append(News(entry, name, kind, late=name in known))
    return news
