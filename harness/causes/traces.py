"""Why two arms differ, as far as their traces tell."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from harness.causes.explanation import Explanation, because
from harness.equivalence import Difference
from harness.findings import CauseKind
from harness.trace import Trace

GRADIENTS = frozenset({"gradients", "returned_gradients", "input_gradients"})
_VALUES = {
    "outputs": "the checkpointed forward computes other values than the ordinary one",
    "losses": "the checkpointed forward computes another loss than the ordinary one",
    "parameters": "the optimizer's step left another value than in the ordinary arm",
    "momenta": "the optimizer's step left another momentum than in the ordinary arm",
}
_GRADIENT = (
    "the backward pass saw other values than the ordinary one: the replay computed something else "
    "than the forward"
)


def phase_of(point: str) -> str | None:
    """Return the pass that ends at a point of the program; None for the end."""
    passes = {
        "set-up": "set-up",
        "start of forward": "buffer broadcast",
        "forward": "forward",
        "backward": "backward",
        "step": "optimizer step",
    }
    return passes.get(point.partition("[")[0])


def owner_of(name: str) -> str:
    """Return the path of the module that a parameter, buffer or attribute belongs to."""
    return name.rpartition(".")[0]


def _holder_of(name: str, root: nn.Module) -> str:
    """Return the path of the module that holds an attribute, or the object that it belongs to."""
    path: list[str] = []
    for part in name.partition("[")[0].split("."):
        child = root._modules.get(part)
        if child is None:
            break
        path.append(part)
        root = child
    return ".".join(path)


def value_before(trace: Trace, difference: Difference) -> Tensor | None:
    """Return the value that an observation had the last time it was seen before a difference."""
    before = None
    for point, seen in trace.points.items():
        if point == difference.point:
            break
        before = seen.get(difference.group, {}).get(difference.name, before)
    return before


def explain_traces(difference: Difference, ordinary: Trace, judged: Trace) -> Explanation:
    """Explain a difference by the values that the arms saw.

    Args:
        difference: The difference.
        ordinary: What the ordinary arm saw.
        judged: What the judged arm saw.

    Returns:
        The cause and its remedy; general ones where nothing better is known.
    """
    phase = phase_of(difference.point)
    group, name = difference.group, difference.name
    if not name or difference.got == "missing" or difference.expected == "missing":
        if group in ("parameters", "buffers", "gradients", "momenta"):
            return because(
                CauseKind.STATE_KEYS,
                "the arms have other names for their parameters or buffers",
                phase=phase,
            )
    if group == "buffers":
        return _buffer(difference, ordinary, judged)
    if group == "attributes" and name.endswith(".requires_grad"):
        parameter = name.removesuffix(".requires_grad")
        is_thawed = difference.got is True or difference.expected is False
        return because(
            CauseKind.GRADIENT_UNEXPECTED if is_thawed else CauseKind.GRADIENT_MISSING,
            f"requires_grad of {parameter} is {difference.got} here and {difference.expected} in "
            "the ordinary arm",
            module=owner_of(parameter),
            phase=phase,
        )
    if group == "attributes":
        return because(
            CauseKind.STATE_WRITTEN,
            f"Python attribute {name!r} is written otherwise than in the ordinary arm "
            f"({difference.expected} there, {difference.got} here): a replay that writes it, or "
            "writes it again, does that",
            module=_holder_of(name, judged.module),
            phase=phase,
        )
    if group == "rebound":
        return because(
            CauseKind.STATE_REBOUND,
            f"another tensor stands in the place of {name!r}"
            if difference.got is True
            else f"the ordinary arm puts another tensor in the place of {name!r}, and this one not",
            module=owner_of(name),
            phase=phase,
        )
    if group == "modes":
        is_dtype = name.startswith("autocast") or name == "default dtype"
        kind = CauseKind.DTYPE_DRIFT if is_dtype else CauseKind.STATE_WRITTEN
        return because(
            kind,
            f"{name} was left behind: {difference.expected} in the ordinary arm, {difference.got} "
            "here",
            phase=phase,
        )
    if group == "random_state":
        return because(
            CauseKind.RANDOM_STATE,
            f"a random generator ({name}) is left in another state: the replay drew from it, or "
            "did not put it back",
        )
    if group in GRADIENTS:
        return _gradient(difference, ordinary, judged)
    module = owner_of(name) if group in ("parameters", "momenta") else None
    return because(CauseKind.UNKNOWN, _VALUES.get(group, _GRADIENT), module=module, phase=phase)


def _buffer(difference: Difference, ordinary: Trace, judged: Trace) -> Explanation:
    path, phase = owner_of(difference.name), phase_of(difference.point)
    norm = _submodule(judged.module, path)
    counts = _counts(difference, ordinary, judged, path)
    if isinstance(norm, _NormBase) and counts is not None:
        expected, got = counts
        name = f"{type(norm).__name__} {path!r}" if path else type(norm).__name__
        if got > expected > 0:
            ratio = got / expected
            times = "twice" if ratio <= 2 else f"{ratio:g} times"
            return because(
                CauseKind.REPEATED_UPDATE,
                f"{name} was updated {times}: the replay ran its running-statistics update again "
                f"({got} updates for {_forwards(expected)})",
                module=path,
                phase=phase,
            )
        if got < expected:
            return because(
                CauseKind.MISSING_UPDATE,
                f"{name} was updated too seldom: {got} updates for {_forwards(expected)}",
                module=path,
                phase=phase,
            )
    before = value_before(judged, difference)
    now = judged.points.get(difference.point, {}).get("buffers", {}).get(difference.name)
    if phase == "forward" and before is not None and now is not None and torch.equal(before, now):
        return because(
            CauseKind.MISSING_UPDATE,
            "the forward did not update this buffer, as it does in the ordinary arm",
            module=path,
            phase=phase,
        )
    if phase == "buffer broadcast":
        return because(
            CauseKind.BUFFER_SYNC,
            "the copy of buffers between ranks left another value than in the ordinary arm",
            module=path,
            phase=phase,
        )
    return because(
        CauseKind.STATE_WRITTEN,
        "a replay wrote this buffer, or restored it to another value",
        module=path,
        phase=phase,
    )


def _counts(
    difference: Difference, ordinary: Trace, judged: Trace, path: str
) -> tuple[int, int] | None:
    counter = f"{path}.num_batches_tracked" if path else "num_batches_tracked"
    expected, got = (
        trace.points.get(difference.point, {}).get("buffers", {}).get(counter)
        for trace in (ordinary, judged)
    )
    return None if expected is None or got is None else (int(expected), int(got))


def _gradient(difference: Difference, ordinary: Trace, judged: Trace) -> Explanation:
    phase = phase_of(difference.point)
    expected, got = (
        trace.points.get(difference.point, {}).get(difference.group, {}).get(difference.name)
        for trace in (ordinary, judged)
    )
    module = None if difference.group == "input_gradients" else owner_of(difference.name)
    if module is not None and module.startswith("inputs"):
        module = None
    if expected is not None and (got is None or not got.any()) and expected.any():
        return because(
            CauseKind.GRADIENT_MISSING,
            f"{difference.name} has no gradient, and has one in the ordinary arm: what it goes "
            "into is detached, or is not given back by the replay",
            module=module,
            phase=phase,
        )
    if expected is None and got is not None:
        return because(
            CauseKind.GRADIENT_UNEXPECTED,
            f"{difference.name} has a gradient, and none in the ordinary arm",
            module=module,
            phase=phase,
        )
    factor = _factor(expected, got)
    if factor is not None:
        return because(
            CauseKind.REDUCTION,
            f"the gradient is {factor:.6g} times that of the ordinary arm in every element: it was "
            "scaled, or reduced more or less often",
            module=module,
            phase=phase,
        )
    return because(CauseKind.UNKNOWN, _GRADIENT, module=module, phase=phase)


def _factor(expected: Tensor | None, got: Tensor | None) -> float | None:
    """Return by what one number a gradient was multiplied; None where there is none."""
    if expected is None or got is None or expected.shape != got.shape or expected.numel() < 2:
        return None
    first, second = expected.double().flatten(), got.double().flatten()
    norm = float(first @ first)
    factor = float(first @ second) / norm if norm else math.nan
    rounding = 8 * torch.finfo(got.dtype).eps * first.abs().max() * max(abs(factor), 1.0)
    if not math.isfinite(factor) or bool(((second - factor * first).abs() > rounding).any()):
        return None
    return None if abs(factor - 1) <= 8 * torch.finfo(got.dtype).eps else factor


def _forwards(count: int) -> str:
    return f"{count} logical forward{'' if count == 1 else 's'}"


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None
