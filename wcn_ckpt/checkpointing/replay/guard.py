"""What a forward read, and whether it is still the same when the forward is replayed.

Autograd refuses a backward pass whose saved tensors were changed in place. Torch's checkpoint does
so only for positional tensors: everything else that a replay reads may have moved, and the gradient
is silently wrong. A record of identities and version counters closes that gap.
"""

from __future__ import annotations

from operator import attrgetter, is_

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wcn_ckpt.checkpointing.errors import ReplayGuardError
from wcn_ckpt.checkpointing.replay.plan import ReplayPlan
from wcn_ckpt.checkpointing.replay.redirect import Holder
from wcn_ckpt.checkpointing.replay.values import fingerprint, version

_version = attrgetter("_version")
_address = Tensor.data_ptr

Fingerprints = dict[tuple[int, str], tuple[int, int, int]]
"""Identity, version and hash of a clean buffer, by holder and name."""


class Ground:
    """What a boundary held at the end of a logical forward.

    Args:
        plan: the parameters and buffers to record.
        fingerprints: hashes of earlier forwards; brought up to date where a buffer moved.
    """

    __slots__ = ("_addresses", "_buffers", "_parameters", "_plan", "_sharded", "_versions")

    def __init__(self, plan: ReplayPlan, fingerprints: Fingerprints) -> None:
        self._plan = plan
        self._parameters = parameters = plan.parameters()
        self._versions = list(map(_version, parameters))
        self._addresses = list(map(_address, parameters)) if plan.addressed else None
        self._sharded = list(map(_version, plan.sharded)) if plan.sharded else None
        self._buffers = _clean_buffers(plan, fingerprints) if plan.clean else None

    def check(self, boundary: nn.Module) -> None:
        """Refuse a replay on moved ground.

        Raises:
            ReplayGuardError: a module, parameter or buffer was replaced or changed since the
                forward; the message names it.
        """
        plan = self._plan
        parameters = plan.parameters()
        if not (
            plan.same_modules(boundary)
            and len(parameters) == len(self._parameters)
            and all(map(is_, parameters, self._parameters))
        ):
            raise ReplayGuardError(self._replaced(boundary))
        if list(map(_version, parameters)) != self._versions:
            raise ReplayGuardError(self._changed_parameter(boundary))
        if self._addresses is not None and list(map(_address, parameters)) != self._addresses:
            raise ReplayGuardError(self._moved_parameter(boundary))
        if self._sharded is not None and list(map(_version, plan.sharded)) != self._sharded:
            raise ReplayGuardError(
                _message(boundary, "a parameter sharded by FSDP", "changed in place")
            )
        if self._buffers is not None:
            self._check_buffers(boundary)

    def _check_buffers(self, boundary: nn.Module) -> None:
        assert self._buffers is not None
        for (holder, name), (identity, old, digest) in zip(
            self._plan.clean, self._buffers, strict=True
        ):
            buffer = holder.get(name)
            if id(buffer) == identity and (buffer is None or version(buffer) == old):
                continue
            # A broadcast among ranks moves the version of a constant, and not its value.
            if buffer is None or fingerprint(buffer) != digest:
                path = path_of(boundary, holder, name)
                raise ReplayGuardError(
                    _message(boundary, f"buffer {path!r}", "changed or replaced")
                )

    def _replaced(self, boundary: nn.Module) -> str:
        modules = set(map(id, self._plan.modules))
        for path, module in boundary.named_modules():
            if path and id(module) not in modules:
                return _message(boundary, f"module {path!r}", "replaced or added")
        known = set(map(id, self._parameters))
        for path, parameter in boundary.named_parameters():
            if id(parameter) not in known:
                return _message(boundary, f"parameter {path!r}", "replaced")
        return _message(boundary, "a module or parameter", "removed")

    def _changed_parameter(self, boundary: nn.Module) -> str:
        for parameter, old in zip(self._parameters, self._versions, strict=True):
            if parameter._version != old:
                path = _parameter_path(boundary, parameter)
                what = f"version {old} in the forward, {parameter._version} now"
                return _message(boundary, f"parameter {path!r}", f"changed in place ({what})")
        raise AssertionError("a version differs")

    def _moved_parameter(self, boundary: nn.Module) -> str:
        assert self._addresses is not None
        for parameter, old in zip(self._parameters, self._addresses, strict=True):
            if parameter.data_ptr() != old:
                path = _parameter_path(boundary, parameter)
                return _message(
                    boundary, f"parameter {path!r}", "given other data (`.data`, `.to`)"
                )
        raise AssertionError("an address differs")


def path_of(boundary: nn.Module, holder: Holder, name: str) -> str:
    """The dotted path below `boundary` of an entry of a `_buffers` or `_parameters` dictionary."""
    for path, module in boundary.named_modules():
        if module._buffers is holder or module._parameters is holder:
            return f"{path}.{name}" if path else name
    return name


def moved_message(boundary: nn.Module, what: str) -> str:
    """The text of a `ReplayGuardError`."""
    return (
        f"{type(boundary).__name__} cannot be replayed: {what} between the forward pass and its "
        "backward pass, so that the gradient would be wrong. Run backward before the change, or "
        "run the forward again after it."
    )


def _clean_buffers(plan: ReplayPlan, fingerprints: Fingerprints) -> list[tuple[int, int, int]]:
    recorded = []
    for holder, name in plan.clean:
        buffer = holder.get(name)
        key = id(holder), name
        known = fingerprints.get(key)
        now = (id(buffer), -1 if buffer is None else version(buffer))
        if known is None or known[:2] != now:
            digest = 0 if buffer is None or is_lazy(buffer) else fingerprint(buffer)
            known = fingerprints[key] = (*now, digest)
        recorded.append(known)
    return recorded


def _parameter_path(boundary: nn.Module, parameter: Tensor) -> str:
    paths = (path for path, p in boundary.named_parameters() if p is parameter)
    return next(paths, "(no longer in the module)")


def _message(boundary: nn.Module, what: str, happened: str) -> str:
    return moved_message(boundary, f"{what} was {happened}")
