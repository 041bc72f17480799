"""What a boundary holds, flat: its tree, its parameters, and the state that replays must keep."""

from __future__ import annotations

from itertools import chain
from typing import Any

from torch import nn

from wcn_ckpt.checkpointing.replay.kept import KeptHolder
from wcn_ckpt.checkpointing.replay.kinds import Kind, kind_table
from wcn_ckpt.checkpointing.replay.known import (
    has_running_statistics,
    known_state,
    only_writes_statistics,
)
from wcn_ckpt.checkpointing.replay.options import ReplayOptions
from wcn_ckpt.checkpointing.replay.redirect import Holder, Scratch
from wcn_ckpt.checkpointing.replay.rng import is_generator
from wcn_ckpt.checkpointing.replay.sharding import (
    fsdp_in_use,
    sharded_modules,
    sharded_parameters,
)


class ReplayPlan:
    """Flat lists of what a boundary holds, valid as long as `describes` says so.

    Plans are made once and only read, so that a call costs a few comparisons of lists. The
    boundary itself is not referenced: a plan that lives in it makes no reference cycle.

    Args:
        boundary: the module whose tree is searched.
        options: declared state.

    Attributes:
        norms: layers whose running statistics are written and never read, while they train.
        scratch: what replays of those write instead, kept for the next replay.
        kept: holders of other written state.
        clean: holders and names of buffers that were not seen to be written.
        modules: every module below the boundary.
        addressed: whether the data of a parameter stay where they are.
        sharded: the sharded parameters of FSDP units.
        generators: random generators among the attributes of the modules.
    """

    __slots__ = (
        "_branches", "_buffer_counts", "_buffers", "_contents", "_generation", "_leaves",
        "_options", "_parameter_holders", "_root", "_watched_positions", "_watches_all",
        "_without_buffers", "addressed", "clean", "generators", "holders", "kept", "modules",
        "norms", "scratch", "sharded", "watchable",
    )  # fmt: skip

    def __init__(self, boundary: nn.Module, options: ReplayOptions) -> None:
        self._root = boundary._modules
        self._options = options
        self._generation = kind_table.generation
        self.norms: list[nn.Module] = []
        self.scratch: Scratch = {}
        self.kept: list[KeptHolder] = []
        self.clean: list[tuple[Holder, str]] = []
        managed_by_fsdp = sharded_modules(boundary)
        named = list(boundary.named_modules())
        for path, module in named:
            if only_writes_statistics(module):
                self.norms.append(module)
            elif module is not boundary or module._buffers or module._parameters:
                self._sort_state(path, module)
        modules = [module for _, module in named]
        self.modules = [module for module in modules if module is not boundary]
        self._branches = [module._modules for module in modules if module._modules]
        self._leaves = [module._modules for module in modules if not module._modules]
        self._contents = list(chain.from_iterable(map(dict.values, self._branches)))
        self._without_buffers = [m._buffers for m in modules if not m._buffers]
        self._buffers = [m._buffers for m in modules if m._buffers and m not in self.norms]
        self._buffer_counts = list(map(len, self._buffers))
        self._parameter_holders = [
            m._parameters for m in modules if m._parameters and m not in managed_by_fsdp
        ]
        written = {id(holder.get(name)) for holder, kinds in self.kept for name in kinds}
        current = list(chain.from_iterable(map(dict.values, self._parameter_holders)))
        self._watched_positions = [
            i for i, p in enumerate(current) if p is not None and id(p) not in written
        ]
        self._watches_all = len(self._watched_positions) == len(current)
        self.watchable = [
            module
            for module in modules
            if (module._buffers and module not in self.norms)
            or any(p is not None and not p.requires_grad for p in module._parameters.values())
        ]
        self.holders = [norm._buffers for norm in self.norms] + [holder for holder, _ in self.kept]
        self.addressed = not managed_by_fsdp and not fsdp_in_use()
        self.sharded = sharded_parameters(boundary)
        self.generators = [v for m in modules for v in vars(m).values() if is_generator(v)]

    def _sort_state(self, path: str, module: nn.Module) -> None:
        kinds: dict[str, Kind] = dict(kind_table.of(module))
        kinds |= dict.fromkeys(known_state(module), Kind.IN_PLACE)
        for name in (*module._buffers, *module._parameters):
            declared = self._options.declared(path, name)
            if declared is not None:
                kinds[name] = Kind.WRITTEN if declared == "written" else Kind.IN_PLACE
        written = {name: kind for name, kind in kinds.items() if kind is not Kind.CLEAN}
        for holder in (module._buffers, module._parameters):
            kinds = {
                n: k
                for n, k in written.items()
                if (n in module._parameters) is (holder is module._parameters)
            }
            if kinds:
                self.kept.append((holder, kinds))
        self.clean += [(module._buffers, name) for name in module._buffers if name not in written]

    def parameters(self) -> list[Any]:
        """What the guard watches: parameters that no forward writes and FSDP does not manage."""
        current = list(chain.from_iterable(map(dict.values, self._parameter_holders)))
        if self._watches_all:
            return current
        return [current[i] for i in self._watched_positions if i < len(current)]

    def describes(self, boundary: nn.Module, options: ReplayOptions) -> bool:
        """Whether everything that this plan was made from is unchanged."""
        return (
            self._generation == kind_table.generation
            and self._options is options
            and not any(self._without_buffers)
            and (not self._buffers or list(map(len, self._buffers)) == self._buffer_counts)
            and self.same_modules(boundary)
        )

    def same_modules(self, boundary: nn.Module) -> bool:
        """Whether the modules below `boundary` are still the same objects."""
        return (
            self._root is boundary._modules
            and not any(self._leaves)
            and list(chain.from_iterable(map(dict.values, self._branches))) == self._contents
        )

    def training_norms(self) -> bool:
        """Whether a forward would now update running statistics."""
        return any(norm.training and has_running_statistics(norm) for norm in self.norms)

    def keeps_state(self) -> bool:
        """Whether a replay would have to keep at least one tensor."""
        return bool(self.kept) or self.training_norms()
