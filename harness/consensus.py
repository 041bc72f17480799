"""What must hold across ranks, checked with few collectives.

The functions here call collectives: every rank calls them in the same order, for the same job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from harness.equivalence import differences
from harness.findings import CauseKind, Finding
from harness.trace import Trace
from matrix.expectations import Fact
from matrix.programs import Program

_Values = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class _Watched:
    fact: Fact
    agree: bool
    point: str
    group: str


def _watched(program: Program, trace: Trace) -> tuple[_Watched, ...]:
    points = list(trace.points)
    starts = [point for point in points if point.startswith("start of forward")][1:]
    starts = list(dict.fromkeys([*starts[:1], *starts[-1:]]))
    reduced = [f"backward[{last}]" for last in _last_backwards(program)]
    last_step = [point for point in points if point.startswith("step")][-1]
    return (
        _Watched(Fact.PARAMETERS_AGREE_AT_START, True, "set-up", "parameters"),
        _Watched(Fact.PARAMETERS_DIFFER_AT_START, False, "set-up", "parameters"),
        _Watched(Fact.PARAMETERS_AGREE_AT_END, True, last_step, "parameters"),
        _Watched(Fact.PARAMETERS_DIFFER_AT_END, False, last_step, "parameters"),
        _Watched(Fact.GRADIENTS_DIFFER_BEFORE_SYNC, False, "backward[0]", "gradients"),
        *(_Watched(Fact.GRADIENTS_AGREE, True, point, "gradients") for point in reduced),
        *(_Watched(Fact.BUFFERS_AGREE_AT_FORWARD, True, start, "buffers") for start in starts),
        *(_Watched(Fact.BUFFERS_DIFFER_AT_FORWARD, False, start, "buffers") for start in starts),
        _Watched(Fact.BUFFERS_AGREE_AT_END, True, last_step, "buffers"),
        _Watched(Fact.BUFFERS_DIFFER_AT_END, False, last_step, "buffers"),
    )


def _last_backwards(program: Program) -> list[int]:
    """Return, for each optimizer step, the index of the last backward pass before it."""
    return [count - 1 for count in accumulate(len(group) for group in program.backwards)]


def check_agreement(
    facts: frozenset[Fact], program: Program, judged: Trace, rank: int, differs: bool
) -> tuple[list[Finding], bool]:
    """Check which observations agree between ranks, and take a vote.

    Args:
        facts: What must hold.
        program: The training of the case.
        judged: What the judged arm saw on this rank.
        rank: This rank.
        differs: This rank's vote: whether its arms differ.

    Returns:
        The findings of this rank, and whether any rank voted that its arms differ.
    """
    alone = dist.get_world_size() == 1
    watched = [
        item
        for item in _watched(program, judged)
        if item.fact in facts and (item.agree or not alone)
    ]
    own = [int(differs), *(_digest(judged.points[i.point][i.group]) for i in watched)]
    gathered = [torch.empty(len(own), dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.tensor(own, dtype=torch.int64))
    table = torch.stack(gathered)
    findings: list[Finding] = []
    for column, item in enumerate(watched, start=1):
        agree = bool((table[:, column] == table[0, column]).all())
        if agree != item.agree:
            values = judged.points[item.point][item.group]
            findings += _disagreement(item, values, rank) if item.agree else [_sameness(item, rank)]
    return findings, bool(table[:, 0].any())


def any_rank(flag: bool) -> bool:
    """Tell whether a flag is set on any rank; a collective.

    Args:
        flag: This rank's.
    """
    votes = torch.tensor([int(flag)])
    dist.all_reduce(votes)
    return bool(votes.any())


def check_mean_gradient(
    program: Program, judged: Trace, alone: Trace, rank: int, noise: float
) -> list[Finding]:
    """Check that each reduced gradient is the mean of what the ranks compute alone.

    Let g(r, k) be the gradient of rank r's backward k. In float32 DDP rounds each term at most
    ``m = backwards * (ranks + 3)`` times (accumulating, dividing, summing), so its result is
    within ``m u / (1 - m u) * sum |g(r, k)| / ranks`` of the float64 mean, u being half the
    dtype's epsilon (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).

    Args:
        program: The training of the case.
        judged: What the judged arm saw, reduced over ranks.
        alone: What the ordinary arm saw on this rank without a wrapper, following ``judged``.
        rank: This rank.
        noise: Measured noise of the ordinary arm, added to the bound.

    Returns:
        One finding for each gradient that is out of bounds.
    """
    ranks = dist.get_world_size()
    terms = [
        (name, last, *_local_terms(alone, name, last - len(group) + 1, last))
        for last, group in zip(_last_backwards(program), program.backwards, strict=True)
        for name, _ in alone.module.named_parameters()
    ]
    summed = torch.cat([part.flatten() for _, _, *parts in terms for part in parts])
    dist.all_reduce(summed)
    summed /= ranks
    findings = []
    offset = 0
    roundings = max(len(group) for group in program.backwards) * (ranks + 3)
    for name, last, term, _ in terms:
        mean, magnitude = summed[offset : offset + 2 * term.numel()].chunk(2)
        offset += 2 * term.numel()
        gradient = judged.points[f"backward[{last}]"]["gradients"][name]
        if gradient is None:
            continue
        unit = torch.finfo(gradient.dtype).eps / 2
        gamma = roundings * unit / (1 - roundings * unit)
        bound = (gamma * magnitude + noise).reshape(term.shape)
        mean = mean.reshape(term.shape)
        gap = (gradient.double().cpu() - mean).abs()
        wrong = (~(gap <= bound)).nonzero()
        if len(wrong):
            index = tuple(wrong[0].tolist())
            findings.append(
                Finding(
                    rank=rank,
                    point=f"backward[{last}]",
                    path=f"gradients/{name}{list(index)}",
                    expected=mean[index].item(),
                    got=gradient[index].item(),
                    max_abs=gap.max().item(),
                    tolerance=bound[index].item(),
                    tolerance_source=f"{roundings} roundings in {gradient.dtype} of the terms "
                    "summed, against their float64 mean",
                    cause="the reduced gradient is not the mean of the gradients that the ranks "
                    "compute alone",
                    remedy="look for a parameter that is not reduced, or reduced before its last "
                    "contribution",
                    kind=CauseKind.REDUCTION,
                )
            )
    return findings


def _local_terms(alone: Trace, name: str, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Return the gradient accumulated over some backwards, and the magnitudes of its terms."""
    gradients = [alone.points[f"backward[{k}]"]["gradients"][name] for k in range(first, last + 1)]
    total = torch.zeros(alone.points["set-up"]["parameters"][name].shape, dtype=torch.float64)
    magnitude = torch.zeros_like(total)
    for gradient in gradients:
        if gradient is not None:
            wide = gradient.double().cpu()
            magnitude += (wide - total).abs()
            total = wide
    return total, magnitude


def _digest(values: _Values) -> int:
    digest = hashlib.sha256()
    for name, value in values.items():
        digest.update(name.encode())
        if value is not None:
            digest.update(value.reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


def _disagreement(item: _Watched, values: _Values, rank: int) -> list[Finding]:
    everyone: list[_Values] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, dict(values))
    wrapped = {item.point: {item.group: dict(everyone[0])}}
    return [
        Finding(
            rank=rank,
            point=item.point,
            path=difference.path,
            expected=difference.expected,
            got=difference.got,
            max_abs=difference.max_abs,
            tolerance_source="bitwise, against rank 0",
            cause=f"{item.group} differ between ranks 0 and {rank} where they must be equal",
            remedy="look for a tensor that is not reduced or not copied between ranks",
            kind=_kind(item),
        )
        for difference in differences(wrapped, {item.point: {item.group: dict(values)}})
    ]


def _sameness(item: _Watched, rank: int) -> Finding:
    return Finding(
        rank=rank,
        point=item.point,
        path=item.group,
        expected="different on some rank",
        got="the same on every rank",
        tolerance_source="bitwise, over all ranks",
        cause="ranks that see different data have the same buffers: they were copied between "
        "ranks where nothing should copy them, or the ranks saw the same data",
        remedy="check the buffer option that reaches DDP, and the inputs of each rank",
        kind=_kind(item),
    )


def _kind(item: _Watched) -> CauseKind:
    return CauseKind.BUFFER_SYNC if item.group == "buffers" else CauseKind.REDUCTION
