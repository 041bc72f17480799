"""What a forward read, and whether it is still the same when the forward is replayed.

Autograd refuses a backward pass whose saved tensors were changed in place. Torch's checkpoint does
so only for positional tensors: everything else that a replay reads may have moved, and the gradient
is silently wrong. A record of identities and version counters closes that gap.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wcn_ckpt.checkpointing.errors import ReplayGuardError
from wcn_ckpt.checkpointing.replay.naming import name_of
from wcn_ckpt.checkpointing.replay.plan import ReplayPlan
from wcn_ckpt.checkpointing.replay.redirect import Holder
from wcn_ckpt.checkpointing.replay.values import address, fingerprint, version

_version = attrgetter("_version")

LARGEST_COMPARED_BUFFER = 1 << 16
"""Elements of a buffer up to which ranks compare its value in each forward."""


class BufferRecord(NamedTuple):
    """A clean buffer as a forward left it: where it was, and a hash of its value."""

    identity: int
    version: int
    address: int
    value: int


Fingerprints = dict[tuple[int, str], BufferRecord]
"""Records of clean buffers, by holder and name."""


class Ground:
    """What a boundary held at the end of a logical forward.

    Args:
        plan: the parameters to record.
        training: the modes of its modules.
        fingerprints: records of earlier forwards; brought up to date where a buffer moved.
    """

    __slots__ = ("_buffers", "_plan", "_record", "_sharded")

    def __init__(
        self, plan: ReplayPlan, training: tuple[bool, ...], fingerprints: Fingerprints
    ) -> None:
        self._plan = plan
        self._record = plan.parameter_record()
        self._sharded = list(map(_version, plan.sharded)) if plan.sharded else None
        self._buffers = None
        if plan.clean or False in training:
            self._buffers = _buffer_records(plan.read_buffers(), fingerprints)

    def check(self, boundary: nn.Module) -> list[tuple[Tensor, bool]] | None:
        """Refuse a replay on moved ground.

        Returns:
            Parameters whose `requires_grad` was switched, with the value in the forward: a replay
            has to use that. None where nothing has changed.

        Raises:
            ReplayGuardError: a module, parameter or buffer was replaced or changed since the
                forward; the message names it.
        """
        plan = self._plan
        if not plan.same_entries():
            raise ReplayGuardError(self._replaced(boundary))
        if self._sharded is not None and list(map(_version, plan.sharded)) != self._sharded:
            raise ReplayGuardError(
                moved_message(boundary, "a parameter sharded by FSDP was changed in place")
            )
        if self._buffers is not None:
            self._check_buffers(boundary)
        record = plan.parameter_record()
        return None if record == self._record else self._compare(boundary, record)

    def _compare(self, boundary: nn.Module, record: list[Any]) -> list[tuple[Tensor, bool]]:
        parameters = self._plan.parameters
        count = len(parameters)
        switched = []
        for index, parameter in enumerate(parameters):
            before, now = self._record[index::count], record[index::count]
            (old_version, old_flag, *old_address), (new_version, new_flag, *new_address) = (
                before,
                now,
            )
            happened = None
            if old_version != new_version:
                versions = f"version {old_version} in the forward, {new_version} now"
                happened = f"changed in place ({versions})"
            elif old_address != new_address:
                happened = "given other data (`.data = ...`, `.to()`)"
            elif old_flag != new_flag:
                switched.append((parameter, old_flag))
            if happened is not None:
                paths = (path for path, p in boundary.named_parameters() if p is parameter)
                name = next(paths, "(removed)")
                raise ReplayGuardError(
                    moved_message(boundary, f"parameter {name!r} was {happened}")
                )
        return switched

    def _check_buffers(self, boundary: nn.Module) -> None:
        assert self._buffers is not None
        for holder, name, record in self._buffers:
            buffer = holder.get(name)
            if record[:3] == _place(buffer) and not _may_change_silently(buffer):
                continue
            # A broadcast among ranks moves the version of a constant, and not its value.
            if buffer is None or fingerprint(buffer) != record.value:
                path = path_of(boundary, holder, name)
                raise ReplayGuardError(
                    moved_message(boundary, f"buffer {path!r} was changed or replaced")
                )

    def _replaced(self, boundary: nn.Module) -> str:
        modules = set(map(id, self._plan.modules))
        for path, module in boundary.named_modules():
            if path and id(module) not in modules:
                return moved_message(boundary, f"module {path!r} was replaced or added")
        known = set(map(id, self._plan.parameters))
        for path, parameter in boundary.named_parameters():
            if id(parameter) not in known:
                return moved_message(boundary, f"parameter {path!r} was replaced")
        return moved_message(boundary, "a module or parameter was removed")


def _place(buffer: Tensor | None) -> tuple[int, int, int]:
    if buffer is None:
        return 0, 0, 0
    return id(buffer), version(buffer), address(buffer)


def _may_change_silently(buffer: Tensor | None) -> bool:
    """Whether a broadcast among ranks could write a buffer without moving its version.

    DistributedDataParallel does so before a forward. Comparing values costs little on the CPU; on
    an accelerator it would wait for the device in each forward, so there versions have to do.
    """
    return (
        buffer is not None
        and buffer.device.type == "cpu"
        and buffer.numel() <= LARGEST_COMPARED_BUFFER
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    )


def _buffer_records(
    buffers: list[tuple[Holder, str]], fingerprints: Fingerprints
) -> list[tuple[Holder, str, BufferRecord]]:
    records = []
    for holder, name in buffers:
        buffer = holder.get(name)
        place = _place(buffer)
        record = fingerprints.get((id(holder), name))
        if record is None or record[:3] != place or _may_change_silently(buffer):
            value = 0 if buffer is None or is_lazy(buffer) else fingerprint(buffer)
            record = fingerprints[id(holder), name] = BufferRecord(*place, value)
        records.append((holder, name, record))
    return records


def path_of(boundary: nn.Module, holder: Holder, name: str) -> str:
    """The dotted path below `boundary` of an entry of a `_buffers` or `_parameters` dictionary."""
    for path, module in boundary.named_modules():
        if module._buffers is holder or module._parameters is holder:
            return f"{path}.{name}" if path else name
    return name


def moved_message(boundary: nn.Module, what: str) -> str:
    """The text of a `ReplayGuardError`."""
    return (
        f"{name_of(boundary)} cannot be replayed: {what} between the forward pass and its "
        "backward pass, so that the gradient would be wrong. Run backward before the change, or "
        "run the forward again after it."
    )
