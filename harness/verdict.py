"""Makes one outcome of what all ranks report about a case.

Every rank has its say. The rank whose failure came first is the cause and stands first; a rank
whose collective failed because of it, or that still waited for it, is a victim and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.findings import NEVER_REPLAYED, CauseKind, Finding
from harness.ranks.pool import RankResult
from harness.remedies import REMEDIES
from harness.row import Outcome
from harness.waiting import Place, missing_collective, place_of


@dataclass(frozen=True, kw_only=True)
class RankVerdict:
    """What one rank says about one case."""

    findings: list[Finding] = field(default_factory=list)
    """What was not as expected."""
    expected: list[Finding] = field(default_factory=list)
    """What differs for a known reason."""
    noise: float | None = None
    """Largest difference of the ordinary arm from itself; None where it was not measured."""
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """``group/name`` -> largest difference allowed, of the tensors in which it is not bitwise."""
    raised_at: float | None = None
    """When an arm raised, in seconds of the monotonic clock of the rank's machine."""
    in_collective: bool = False
    """Whether what was raised is only that a collective with the other ranks failed."""


class CaseVerdict(NamedTuple):
    """What all ranks together say about one case."""

    outcome: Outcome
    findings: tuple[Finding, ...]
    noise: float | None


_WAITING = re.compile(r"/torch/(distributed|nn/parallel|autograd/graph)")
"""Files whose frame is innermost on a rank that waits for the others."""

_HANGS = 2
"""Severity of a rank that hangs by itself."""

_IN_COLLECTIVE = 3
"""Severity of a rank that failed or waits in a collective."""

_GROUP_FINDING = "process"
"""Path of findings about a rank's process, not about a value."""


def combine(results: Sequence[RankResult]) -> CaseVerdict:
    """Combine the reports of all ranks.

    Args:
        results: One per rank, with a :class:`RankVerdict` where the rank returned.

    Returns:
        The outcome of the case and all findings, causes first.
    """
    failures = sorted(
        (failure for result in results if (failure := _failure(result)) is not None),
        key=lambda failure: (failure.severity, failure.at),
    )
    judged = [
        finding
        for result in results
        if result.status == "returned" and result.value.raised_at is None
        for finding in result.value.findings
    ]
    # What comes from another rank stands behind what came about where it was seen.
    judged.sort(key=lambda finding: finding.source_rank not in (None, finding.rank))
    noises = [
        result.value.noise
        for result in results
        if result.status == "returned" and result.value.noise is not None
    ]
    noise = max(noises, default=None)
    if failures:
        failures = _without_collective(failures, results)
        first = failures[0]
        rest = [_as_victim(failure, first) for failure in failures[1:]]
        return CaseVerdict(first.outcome, (first.finding, *rest, *judged), noise)
    if judged:
        return CaseVerdict(_judged_outcome(judged), tuple(judged), noise)
    expected = tuple(
        finding
        for result in results
        if result.status == "returned"
        for finding in result.value.expected
    )
    return CaseVerdict("expected_difference" if expected else "equal", expected, noise)


def tolerances_of(results: Sequence[RankResult]) -> dict[str, float]:
    """Return what is allowed in each tensor, on the rank that allows most.

    Args:
        results: One per rank, with a :class:`RankVerdict` where the rank returned.

    Returns:
        ``group/name`` -> largest difference allowed; empty where the comparison is bitwise.
    """
    allowed: dict[str, float] = {}
    for result in results:
        if result.status == "returned":
            for path, value in result.value.tolerances.items():
                allowed[path] = max(allowed.get(path, 0.0), value)
    return allowed


def _judged_outcome(findings: Sequence[Finding]) -> Outcome:
    if all(finding.path == NEVER_REPLAYED for finding in findings):
        return "never_replayed"
    return "differs"


def _without_collective(failures: list[_Failure], results: Sequence[RankResult]) -> list[_Failure]:
    """Name the rank that did not enter a collective, where the stacks of the others show it."""
    if failures[0].severity < _IN_COLLECTIVE:
        return failures
    places: dict[int, Place | None] = {result.rank: None for result in results}
    places |= {f.finding.rank: place_of(str(f.finding.got)) for f in failures}
    found = missing_collective(places)
    if found is None:
        return failures
    waiting, missing, cause = found
    named = []
    for failure in failures:
        kind = CauseKind.MISSING_COLLECTIVE
        finding = replace(
            failure.finding,
            cause=cause,
            remedy=REMEDIES[kind],
            kind=kind,
            phase="replay",
            source_rank=missing,
        )
        named.append(failure._replace(finding=finding))
    return sorted(named, key=lambda failure: failure.finding.rank != waiting)


class _Failure(NamedTuple):
    severity: int
    """0 died, 1 raised, 2 hangs by itself, 3 failed or waits in a collective."""
    at: float
    """Seconds after the rank took the case, or of the clock that all ranks share."""
    outcome: Outcome
    finding: Finding


def _failure(result: RankResult) -> _Failure | None:
    if result.status == "returned":
        verdict: RankVerdict = result.value
        if verdict.raised_at is None:
            return None
        severity = 3 if verdict.in_collective else 1
        at = verdict.raised_at - result.started
        return _Failure(severity, at, "error", verdict.findings[0])
    at = result.at - result.started
    if result.status == "died":
        finding = _process_finding(
            result,
            cause=f"rank {result.rank} {result.error} while it ran this case",
            remedy="replay the case; the rank's last output is under 'got'",
        )
        return _Failure(0, at, "crashed", finding)
    if result.status == "raised":
        finding = _process_finding(
            result,
            cause="the lab itself raised on this rank",
            remedy="report the traceback under 'got'",
        )
        return _Failure(1, at, "error", finding)
    waits = bool(_WAITING.search(_innermost_frame(result.detail)))
    finding = _process_finding(
        result,
        cause=f"rank {result.rank} "
        + ("waited in a collective" if waits else "did not come to an end"),
        remedy="look at the stacks under 'got'; raise --case-timeout if the case is only slow",
    )
    return _Failure(3 if waits else 2, at, "hung", finding)


def _process_finding(result: RankResult, *, cause: str, remedy: str) -> Finding:
    return Finding(
        rank=result.rank,
        point="unknown",
        path=_GROUP_FINDING,
        expected="a report within the time limit",
        got=f"{result.error}\n{result.detail}".rstrip(),
        tolerance_source="none",
        cause=cause,
        remedy=remedy,
        kind=CauseKind.PROCESS,
    )


def _as_victim(failure: _Failure, first: _Failure) -> Finding:
    if failure.severity == _HANGS and first.severity < _HANGS:
        return replace(
            failure.finding,
            cause=f"stopped: rank {failure.finding.rank} was still busy a while after rank "
            f"{first.finding.rank} had failed",
            remedy=f"see the finding of rank {first.finding.rank}",
            source_rank=first.finding.rank,
        )
    if failure.severity < 3 or first.severity == 3:
        return failure.finding
    return replace(
        failure.finding,
        cause=f"victim: rank {failure.finding.rank} waited in a collective for rank "
        f"{first.finding.rank}, which failed first",
        remedy=f"see the finding of rank {first.finding.rank}",
        source_rank=first.finding.rank,
    )


def _innermost_frame(stacks: str) -> str:
    """Return the innermost frame of the main thread, which is the last one faulthandler prints."""
    lines = stacks.splitlines()
    starts = [number for number, line in enumerate(lines) if "most recent call first" in line]
    return lines[starts[-1] + 1] if starts and starts[-1] + 1 < len(lines) else ""
