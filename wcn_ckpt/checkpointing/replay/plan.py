"""Which state a boundary holds: the norm layers below it, found by themselves."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from wcn_ckpt.checkpointing.replay.redirect import Scratch, Slot

_WRITTEN_NOT_READ = frozenset(
    {
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.SyncBatchNorm,
        nn.InstanceNorm1d,
        nn.InstanceNorm2d,
        nn.InstanceNorm3d,
        nn.LazyBatchNorm1d,
        nn.LazyBatchNorm2d,
        nn.LazyBatchNorm3d,
        nn.LazyInstanceNorm1d,
        nn.LazyInstanceNorm2d,
        nn.LazyInstanceNorm3d,
    }
)
"""Classes whose forward in training writes its running statistics and never reads them."""


class ReplayPlan:
    """The norm layers of a boundary, flat, and the shape of the tree they were found in.

    Two kinds of buffers are told apart. Torch's own norm classes only *write* their running
    statistics while they train, so a replay may write them anywhere else. A subclass may *read*
    them as well, so a replay has to find the values that its logical forward found.

    The boundary itself is not referenced: a plan that lives in it makes no reference cycle.

    Args:
        boundary: the module whose tree is searched.

    Attributes:
        norms: the layers of the first kind.
        scratch: what their replays write, kept for the next one: two vectors and a counter for
            each shape of statistics.
    """

    __slots__ = ("_branches", "_contents", "_leaves", "_read_buffers", "_root", "norms", "scratch")

    def __init__(self, boundary: nn.Module) -> None:
        self._root = boundary._modules
        self._branches: list[dict[str, Any]] = []
        self._leaves: list[dict[str, Any]] = []
        self.norms: list[nn.Module] = []
        self.scratch: Scratch = {}
        self._read_buffers: list[dict[str, Any]] = []
        for module in boundary.modules():
            (self._branches if module._modules else self._leaves).append(module._modules)
            if isinstance(module, _NormBase):
                if type(module) in _WRITTEN_NOT_READ and "forward" not in vars(module):
                    self.norms.append(module)
                else:
                    self._read_buffers.append(module._buffers)
        self._contents = list(map(tuple, map(dict.values, self._branches)))

    def describes(self, boundary: nn.Module) -> bool:
        """Whether the tree below `boundary` is still the one this plan was made for."""
        return (
            self._root is boundary._modules
            and not any(self._leaves)
            and list(map(tuple, map(dict.values, self._branches))) == self._contents
        )

    def keeps_state(self) -> bool:
        """Whether a replay would have to keep at least one buffer."""
        for norm in self.norms:
            if norm.training and norm._buffers["running_mean"] is not None:
                return True
        return bool(self._read_buffers and self.read_slots())

    def read_slots(self) -> list[Slot]:
        """Buffers that a forward may both read and write, where they hold a tensor."""
        if not self._read_buffers:
            return []
        return [
            (buffers, name)
            for buffers in self._read_buffers
            for name, buffer in buffers.items()
            if buffer is not None and not is_lazy(buffer)
        ]


class _PlanHolder:
    """Keeps the plan of one boundary; a copied or unpickled boundary starts without one."""

    __slots__ = ("plan",)

    def __init__(self) -> None:
        self.plan: ReplayPlan | None = None

    def __reduce__(self) -> tuple[type[_PlanHolder], tuple[()]]:
        return _PlanHolder, ()


def plan_of(boundary: nn.Module) -> ReplayPlan:
    """Return the plan kept in `boundary`, made anew when modules were added or replaced."""
    holder: _PlanHolder | None = boundary.__dict__.get("_replay_plan")
    if holder is None:
        holder = boundary.__dict__["_replay_plan"] = _PlanHolder()
    plan = holder.plan
    if plan is None or not plan.describes(boundary):
        plan = holder.plan = ReplayPlan(boundary)
    return plan


def has_norm_state(boundary: nn.Module) -> bool:
    """`ReplayPlan.keeps_state` in a form that Dynamo can trace."""
    for module in boundary.modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            if module.training or type(module) not in _WRITTEN_NOT_READ:
                return True
    return False
