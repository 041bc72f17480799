"""Truths about one rank that do not come from the ordinary arm.

Two arms can be wrong together. Each oracle here looks at the judged arm alone and says what must
be true of it by the meaning of a training step.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from typing import TypedDict

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from harness.computations import computes_as_boundary
from harness.findings import NEVER_REPLAYED, CauseKind, Finding
from harness.trace import Trace
from matrix.programs import Program

_EXACT = "exact count"


def norms_of_backward(ordinary: Trace, judged: Trace) -> frozenset[str]:
    """Return the norms that ordinary training calls in its backward passes alone, as in a hook.

    What the logical forwards say about running statistics says nothing about theirs.
    """
    called = {call.name for forward in judged.norm_calls for call in forward}
    return frozenset(ordinary.norms_in_backward - called)


def updates_equal_calls(judged: Trace, rank: int, left_out: Collection[str] = ()) -> list[Finding]:
    """Every BatchNorm that counts its updates has counted its calls in logical forwards.

    Nothing is said where its calls were not watched.

    Args:
        judged: What the judged arm saw, with its norm calls.
        rank: This rank.
        left_out: Norms of which this is not true.
    """
    if not judged.norm_calls:
        return []
    calls = Counter(call.name for forward in judged.norm_calls for call in forward)
    findings = []
    for name, norm in judged.module.named_modules():
        if not isinstance(norm, _BatchNorm) or norm.num_batches_tracked is None or name in left_out:
            continue
        path = f"{name}.num_batches_tracked" if name else "num_batches_tracked"
        got = int(norm.num_batches_tracked)
        expected = int(judged.points["set-up"]["buffers"][path]) + calls[name]
        if got != expected:
            findings.append(
                Finding(
                    rank=rank,
                    point="end",
                    path=f"buffers/{path}",
                    expected=expected,
                    got=got,
                    max_abs=abs(got - expected),
                    tolerance_source=_EXACT,
                    cause=f"{type(norm).__name__} {name!r} did not update its running statistics "
                    f"once per call in a logical forward: {got} updates for {expected} calls",
                    remedy="keep replays, and nothing else, from updating running statistics",
                    kind=CauseKind.REPEATED_UPDATE if got > expected else CauseKind.MISSING_UPDATE,
                    module=name,
                )
            )
    return findings


def calls_as_expected(program: Program, ordinary: Trace, judged: Trace, rank: int) -> list[Finding]:
    """Every boundary computed once per logical forward, and once per backward that replays it.

    A boundary in eval mode is never replayed, nor one that no gradient of ordinary training comes
    to: it is frozen with all before it, or its output is detached. One inside others is computed in
    their replays too, as far as these go: a replay ends with the last tensor that is needed. Not
    counted are replays for a gradient that a forward itself asks for.
    """
    if expected_replays(program, ordinary) and not judged.replays:
        return [_never_replayed(rank)]
    findings = []
    for name in sorted({*ordinary.total_calls, *judged.total_calls}):
        forwards = sum(calls[name] for calls in ordinary.forward_calls)
        replays = _replays_of(name, program, ordinary)
        expected = forwards + replays
        got = judged.total_calls[name] - judged.replays_in_forward[name]
        if not expected <= got <= expected + replays * _boundaries_around(name, ordinary.module):
            findings.append(
                Finding(
                    rank=rank,
                    point="end",
                    path=f"calls/{name}",
                    expected=expected,
                    got=got,
                    max_abs=abs(got - expected),
                    tolerance_source=_EXACT,
                    **_miscounted(name, expected, got, ordinary, judged),
                )
            )
    return findings


def expected_replays(program: Program, ordinary: Trace) -> int:
    """Return how many boundary computations of the judged arm must be replays, at least."""
    return sum(_replays_of(name, program, ordinary) for name in ordinary.total_calls)


def state_keys_unchanged(judged: Trace, rank: int) -> list[Finding]:
    """Checkpointing neither adds nor removes nor renames a ``state_dict`` key."""
    built, ended = judged.state_keys
    if built == ended:
        return []
    changed = sorted({*built} ^ {*ended})
    return [
        Finding(
            rank=rank,
            point="end",
            path=f"state_dict/{changed[0] if changed else 'order'}",
            expected=", ".join(built),
            got=", ".join(ended),
            tolerance_source="exact keys",
            cause="the keys of the state_dict, or their order, changed while the step ran",
            remedy="make parameters and persistent buffers in __init__, and keep checkpointing "
            "state out of them",
            kind=CauseKind.STATE_KEYS,
        )
    ]


class _Miscounted(TypedDict):
    cause: str
    remedy: str
    kind: CauseKind
    module: str | None


def _miscounted(name: str, expected: int, got: int, ordinary: Trace, judged: Trace) -> _Miscounted:
    boundary = _boundary(name, judged)
    if boundary is None or _boundary(name, ordinary) is None:
        return _Miscounted(
            cause=f"only one of the arms has a boundary of the name {name!r}",
            remedy="checkpoint blocks where they are, without a wrapper that changes their names",
            kind=CauseKind.STATE_KEYS,
            module=None,
        )
    who = f"{type(boundary).__name__} {name!r}" if name else type(boundary).__name__
    mode = "" if boundary.training else ", although it is in eval mode"
    often = "more" if got > expected else "less"
    return _Miscounted(
        cause=f"{who} was computed {often} often than once per logical forward and once per "
        f"backward that replays it{mode}",
        remedy="checkpoint it once, in training mode only, and call no backward in its forward"
        if got > expected
        else "check that it is enabled: switching checkpointing on did not reach it",
        kind=CauseKind.UNWANTED_REPLAY if got > expected else CauseKind.NEVER_REPLAYED,
        module=name,
    )


def _boundary(name: str, trace: Trace) -> nn.Module | None:
    module = dict(trace.module.named_modules()).get(name)
    return module if module is not None and computes_as_boundary(module) else None


def _replays_of(name: str, program: Program, ordinary: Trace) -> int:
    boundary = dict(ordinary.module.named_modules()).get(name)
    if boundary is not None and not boundary.training:
        return 0
    return sum(
        min(calls[name] * program.replays(forward), _reached(name, forward, ordinary))
        for forward, calls in enumerate(ordinary.forward_calls)
    )


def _reached(name: str, forward: int, ordinary: Trace) -> int:
    """Return how many replays of the calls in a forward the gradients of the ordinary arm ask for.

    More than any where that was not watched.
    """
    return ordinary.reached[forward][name] if forward < len(ordinary.reached) else sys.maxsize


def _boundaries_around(name: str, module: nn.Module) -> int:
    return sum(
        f"{name}.".startswith(f"{path}." if path else "")
        for path, child in module.named_modules()
        if path != name and computes_as_boundary(child)
    )


def _never_replayed(rank: int) -> Finding:
    return Finding(
        rank=rank,
        point="end",
        path=NEVER_REPLAYED,
        expected="at least one replay",
        got=0,
        tolerance_source=_EXACT,
        cause="the judged arm never replayed a boundary, so this case proves nothing about it",
        remedy="check that the boundary is enabled, in training mode, and runs with gradients on",
        kind=CauseKind.NEVER_REPLAYED,
    )
