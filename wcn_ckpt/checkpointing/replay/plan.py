"""What a boundary holds, flat: its tree, its parameters, and the state that replays must keep."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wcn_ckpt.checkpointing.replay.generators import HeldGenerators
from wcn_ckpt.checkpointing.replay.kinds import Kind, kind_table
from wcn_ckpt.checkpointing.replay.known import (
    frozen_parameters,
    has_running_statistics,
    is_norm_layer,
    known_state,
    only_writes_statistics,
    statistics_read_by_parents,
)
from wcn_ckpt.checkpointing.replay.options import ReplayOptions
from wcn_ckpt.checkpointing.replay.recollection import OncePerForward
from wcn_ckpt.checkpointing.replay.redirect import Holder, KeptHolder, NormScratch, Statistics
from wcn_ckpt.checkpointing.replay.sharding import (
    fsdp_in_use,
    sharded_modules,
    sharded_parameters,
)
from wcn_ckpt.checkpointing.replay.values import address, version

_version = attrgetter("_version")
_flag = attrgetter("requires_grad")
_address = Tensor.data_ptr
_END = object()
"""Makes lists of entries differ that are not equally long."""


def is_watched(parameter: Tensor | None, written: set[int]) -> bool:
    """Whether the guard can and should compare a parameter."""
    return parameter is not None and id(parameter) not in written and version(parameter) >= 0


class ReplayPlan:
    """Flat lists of what a boundary holds, valid as long as `describes` says so.

    Plans are made once and only read, so that a call costs a few comparisons of lists. The
    boundary itself is not referenced: a plan that lives in it makes no reference cycle.

    Args:
        boundary: the module whose tree is searched.
        options: its switches.
        unregistered: norm layers that it runs and that are in no tree of modules.
        read_norms: norm layers whose running statistics it reads.

    Attributes:
        norms: layers whose running statistics are written and never read, while they train.
        kept: holders of other written state.
        clean: holders and names of buffers that were not seen to be written.
        managed_by_fsdp: modules whose parameters FSDP swaps while the boundary runs.
        modules: every module below the boundary.
        norm_layers: every module of the norm family.
        parameters: those that the guard compares: neither written by forwards nor by FSDP.
        watchable: modules with buffers or frozen parameters that a forward might write.
        holders: the dictionaries that a replay redirects.
        addressed: whether the data of a parameter stay where they are.
        sharded: the sharded parameters of FSDP units.
        quiet: whether a forward can only draw global random numbers and update statistics.
        generators: the random generators that the modules hold or refer to, and where they lie.
        recalls: whether a module computes something that replays must not repeat.
        fills_late: whether a module saves a tensor for backward before it is filled: replays that
            end with the last tensor to be saved would leave it as it was allocated.
    """

    __slots__ = (
        "_buffer_counts", "_buffers", "_empty", "_entries", "_generation", "_root", "_views",
        "addressed", "clean", "fills_late", "generators", "holders", "kept", "managed_by_fsdp",
        "modules", "norm_layers", "norms", "options", "parameters", "quiet", "recalls", "sharded",
        "watchable",
    )  # fmt: skip

    def __init__(
        self,
        boundary: nn.Module,
        options: ReplayOptions,
        unregistered: Iterable[nn.Module] = (),
        read_norms: Iterable[nn.Module] = (),
    ) -> None:
        self._root = boundary._modules
        self.options = options
        self._generation = kind_table.generation
        self.norms: list[NormScratch] = []
        shared_scratch: dict[Any, Statistics] = {}
        self.kept: list[KeptHolder] = []
        self.clean: list[tuple[Holder, str]] = []
        self.managed_by_fsdp = sharded_modules(boundary)
        named = list(boundary.named_modules())
        read = {*read_norms, *statistics_read_by_parents(module for _, module in named)}
        for path, module in named:
            if (
                only_writes_statistics(module)
                and module not in read
                and not any(options.declared(path, name) for name in module._buffers)
            ):
                self.norms.append(NormScratch(module, shared_scratch))
            elif module is not boundary or module._buffers or module._parameters:
                self._sort_state(path, module)
        for norm in unregistered:
            if norm in read:
                self._keep(norm._buffers, dict.fromkeys(known_state(norm), Kind.IN_PLACE))
            else:
                self.norms.append(NormScratch(norm, shared_scratch))
        modules = [module for _, module in named]
        self.modules = [module for module in modules if module is not boundary]
        self.norm_layers = list(filter(is_norm_layer, modules))
        self._empty: list[dict[str, Any]] = [m._modules for m in modules if not m._modules]
        self._empty += [module._buffers for module in modules if not module._buffers]
        stateful = [m for m in modules if m._buffers and not only_writes_statistics(m)]
        self._buffers = [module._buffers for module in stateful]
        self._buffer_counts = list(map(len, self._buffers))
        unmanaged = [m for m in modules if m._parameters and m not in self.managed_by_fsdp]
        holders = [m._modules for m in modules if m._modules]
        holders += [module._parameters for module in unmanaged]
        self._views: list[Iterable[Any]] = [*map(dict.values, holders), (_END,)]
        self._entries = list(chain.from_iterable(self._views))
        written = {id(holder.get(name)) for holder, kinds in self.kept for name in kinds}
        self.parameters = [
            p for m in unmanaged for p in m._parameters.values() if is_watched(p, written)
        ]
        self.watchable = [
            module
            for module in modules
            if (module._buffers and not only_writes_statistics(module))
            or (module not in self.managed_by_fsdp and frozen_parameters(module))
        ]
        self.holders = [entry.buffers for entry in self.norms] + [holder for holder, _ in self.kept]
        self.addressed = (
            not (self.managed_by_fsdp or fsdp_in_use())
            and not any(map(is_lazy, self.parameters))
            and all(map(address, self.parameters))
        )
        self.sharded = sharded_parameters(boundary)
        self.generators = HeldGenerators(modules)
        self.recalls = any(isinstance(module, OncePerForward) for module in modules)
        self.fills_late = any(isinstance(module, nn.RReLU) for module in modules)
        self.quiet = not (self.kept or self.watchable or self.generators.found)

    def _sort_state(self, path: str, module: nn.Module) -> None:
        kinds: dict[str, Kind] = dict(kind_table.of(module))
        kinds |= dict.fromkeys(known_state(module), Kind.IN_PLACE)
        for name in (*module._buffers, *module._parameters):
            declared = self.options.declared(path, name)
            if declared is not None:
                kinds[name] = Kind.WRITTEN if declared == "written" else Kind.IN_PLACE
        written = {name: kind for name, kind in kinds.items() if kind is not Kind.CLEAN}
        if module not in self.managed_by_fsdp:
            self._keep(
                module._parameters, {n: k for n, k in written.items() if n in module._parameters}
            )
        self._keep(
            module._buffers, {n: k for n, k in written.items() if n not in module._parameters}
        )
        self.clean += [(module._buffers, name) for name in module._buffers if name not in written]

    def _keep(self, holder: Holder, kinds: dict[str, Kind]) -> None:
        if kinds:
            self.kept.append((holder, kinds))

    def describes(self, boundary: nn.Module, options: ReplayOptions) -> bool:
        """Whether everything that this plan was made from is unchanged."""
        return (
            self._generation == kind_table.generation
            and self.options is options
            and self._root is boundary._modules
            and not any(self._empty)
            and (not self._buffers or list(map(len, self._buffers)) == self._buffer_counts)
            and all(map(is_, chain.from_iterable(self._views), self._entries))
            and self.generators.are_all(boundary)
        )

    def same_entries(self) -> bool:
        """Whether the modules and parameters of the tree are still the same objects."""
        return all(map(is_, chain.from_iterable(self._views), self._entries))

    def parameter_record(self) -> list[Any]:
        """Versions of the parameters, then whether they need a gradient, then their addresses."""
        parameters = self.parameters
        if self.addressed:
            return [*map(_version, parameters), *map(_flag, parameters), *map(_address, parameters)]
        return [*map(_version, parameters), *map(_flag, parameters)]

    def read_buffers(self) -> list[tuple[Holder, str]]:
        """Buffers that a forward would now read and not write.

        A norm layer that is not in training mode reads its statistics.
        """
        frozen = [entry.buffers for entry in self.norms if not entry.norm.training]
        return self.clean + [(buffers, name) for buffers in frozen for name in buffers]

    def training_norms(self) -> bool:
        """Whether a forward would now update running statistics."""
        return any(e.norm.training and has_running_statistics(e.norm) for e in self.norms)

    def keeps_state(self) -> bool:
        """Whether a replay would have to keep at least one tensor."""
        return bool(self.kept) or self.training_norms()
