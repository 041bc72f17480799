"""Running statistics against their recurrence in float64, from the recorded batch statistics.

Neither arm's buffers are trusted: the expected values start from those the model was built with
and follow ``running = (1 - momentum) * running + momentum * batch`` for each norm call of each
logical forward, and nothing else. What DDP copies from rank 0 at the start of a forward is taken
over as it was seen there; that it is rank 0's is checked across ranks.

The bound follows the roundings of a float32 computation, with u half of the buffer dtype's epsilon
and ``gamma(n) = n u / (1 - n u)`` (Higham, Accuracy and Stability of Numerical Algorithms, section
3.1): a mean of n terms is within ``gamma(n + 1) mean |x|``; a variance, in one pass or two, within
``gamma(n + 4) sqrt(var * mean x**2 * n / (n - 1))`` (Chan, Golub and LeVeque, "Algorithms for
Computing the Sample Variance", The American Statistician 37, 1983); the recurrence adds four
roundings of its two terms.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from harness.findings import CauseKind, Finding
from harness.norms import NormCall
from harness.trace import Observations, Trace
from matrix.programs import Program
from wcn_ckpt.nn.modules import SyncBatchNorm

_UPDATE_ROUNDINGS = 4
_BUFFERS = ("running_mean", "running_var")
_KNOWN_FORWARDS = (
    _BatchNorm.forward,
    _InstanceNorm.forward,
    nn.SyncBatchNorm.forward,
    SyncBatchNorm.forward,
)


def running_statistics(
    program: Program, judged: Trace, rank: int, left_out: Collection[str] = ()
) -> list[Finding]:
    """Check the running statistics of every norm that computes as torch's own classes do.

    Args:
        program: The training of the case.
        judged: What the judged arm saw, with its norm calls.
        rank: This rank.
        left_out: Norms of which nothing is known.

    Returns:
        For each wrong statistic, one finding at the first point where it is wrong.
    """
    if not judged.norm_calls:
        return []
    names = [
        name
        for name, norm in judged.module.named_modules()
        if _follows_the_recurrence(norm) and name not in left_out
    ]
    if not names:
        return []
    chain = _Chain(names, judged.points["set-up"])
    findings: list[Finding] = []
    reported: set[str] = set()
    forward = 0
    for point, seen in judged.points.items():
        if "buffers" not in seen or point == "set-up":
            continue
        if point.startswith("start of forward"):
            if rank != 0 and program.copies_buffers(forward):
                chain.take_over(seen)
        elif point.startswith("forward"):
            for call in judged.norm_calls[forward]:
                chain.update(call)
            forward += 1
        for path, expected, got, gap, bound in chain.wrong(seen):
            if path.partition("[")[0] not in reported:
                reported.add(path.partition("[")[0])
                findings.append(_finding(rank, point, path, expected, got, gap, bound))
    return findings


def _follows_the_recurrence(norm: nn.Module) -> bool:
    return (
        isinstance(norm, (_BatchNorm, _InstanceNorm))
        and type(norm).forward in _KNOWN_FORWARDS
        and norm.running_mean is not None
    )


class _Chain:
    """Expected running statistics of all norms, as one flat float64 vector, with a bound."""

    def __init__(self, names: list[str], start: Observations) -> None:
        self._paths = [f"{name}.{b}" if name else b for name in names for b in _BUFFERS]
        self._counters = {name: int(self._count(start, name)) for name in names}
        parts = [start["buffers"][path] for path in self._paths]
        self._unit = torch.finfo(parts[0].dtype).eps / 2
        ends = torch.tensor([part.numel() for part in parts]).cumsum(0).tolist()
        self._slices = {
            path: slice(end - part.numel(), end)
            for path, part, end in zip(self._paths, parts, ends, strict=True)
        }
        self._expected = self._flat(start)
        self._bound = torch.zeros_like(self._expected)

    def take_over(self, seen: Observations) -> None:
        self._expected = self._flat(seen)
        self._bound = torch.zeros_like(self._expected)
        self._counters = {name: int(self._count(seen, name)) for name in self._counters}

    def update(self, call: NormCall) -> None:
        if call.name not in self._counters:
            return
        self._counters[call.name] += 1
        weight = 1 / self._counters[call.name] if call.momentum is None else call.momentum
        n = call.terms
        errors = (
            self._gamma(n + 1) * call.mean_abs,
            self._gamma(n + 4) * (call.var * call.mean_square * (n / (n - 1))).sqrt(),
        )
        for buffer, batch, error in zip(_BUFFERS, (call.mean, call.var), errors, strict=True):
            part = self._slices[f"{call.name}.{buffer}" if call.name else buffer]
            old, new = (1 - weight) * self._expected[part], weight * batch
            rounding = self._gamma(_UPDATE_ROUNDINGS) * (old.abs() + new.abs())
            self._bound[part] = (1 - weight) * self._bound[part] + weight * error + rounding
            self._expected[part] = old + new

    def wrong(self, seen: Observations) -> list[tuple[str, float, float, float, float]]:
        """Return path with index, expected, got, largest difference and bound of what is wrong."""
        got = self._flat(seen)
        gap = (got - self._expected).abs()
        outside = ~(gap <= self._bound)
        if not outside.any():
            return []
        found = []
        for path, part in self._slices.items():
            if outside[part].any():
                index = int(outside[part].nonzero()[0])
                place = part.start + index
                found.append(
                    (
                        f"{path}[{index}]",
                        self._expected[place].item(),
                        got[place].item(),
                        gap[part].max().item(),
                        self._bound[place].item(),
                    )
                )
        return found

    def _gamma(self, roundings: int) -> float:
        return roundings * self._unit / (1 - roundings * self._unit)

    def _flat(self, seen: Observations) -> Tensor:
        return torch.cat([seen["buffers"][path] for path in self._paths]).double().cpu()

    def _count(self, seen: Observations, name: str) -> Tensor:
        counter: Tensor = seen["buffers"][
            f"{name}.num_batches_tracked" if name else "num_batches_tracked"
        ]
        return counter


def _finding(
    rank: int, point: str, path: str, expected: float, got: float, gap: float, bound: float
) -> Finding:
    return Finding(
        rank=rank,
        point=point,
        path=f"buffers/{path}",
        expected=expected,
        got=got,
        max_abs=gap if math.isfinite(gap) else None,
        tolerance=bound,
        tolerance_source="closed form: roundings of the batch statistics and of the recurrence, "
        "against float64",
        cause="the running statistic is not what the batches of the logical forwards make it",
        remedy="look for an update too many or too few, or a write that is no update",
        kind=CauseKind.STATE_WRITTEN,
        module=path.partition("[")[0].rpartition(".")[0],
    )
