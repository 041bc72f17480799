"""Injects faults: runs the cases that must show each one, and says what the lab made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.faults.fault import Fault
from harness.findings import CauseKind
from harness.ranks import RankPool
from harness.row import Row
from harness.runner import RunOptions, run_case

Status = Literal["caught", "misnamed", "missed", "changes nothing", "not run"]
"""What became of a fault: ``missed`` where a case that must show it passes, ``changes nothing``
where all of them do."""

_CUDA_HERE = "harness.faults.injection:cuda_here"


@dataclass(frozen=True)
class Injection:
    """A fault and the rows of its cases; no row where it could not be injected here."""

    fault: Fault
    rows: tuple[Row, ...]

    @property
    def status(self) -> Status:
        """What became of the fault."""
        if not self.rows:
            return "not run"
        if all(row.passed for row in self.rows):
            return "changes nothing"
        if any(row.passed for row in self.rows):
            return "missed"
        sign = self.fault.sign
        if all(sign.is_seen_in(row) and sign.is_named_in(row) for row in self.rows):
            return "caught"
        return "misnamed"

    @property
    def kinds(self) -> tuple[CauseKind, ...]:
        """The kinds of cause that were given, the one to be given first, others as they came."""
        seen = {finding.kind: None for row in self.rows for finding in row.findings}
        return tuple(sorted(seen, key=lambda kind: kind != self.fault.sign.kind))

    @property
    def wrong_rows(self) -> tuple[Row, ...]:
        """The rows in which it does not look as it must."""
        sign = self.fault.sign
        return tuple(
            row for row in self.rows if not (sign.is_seen_in(row) and sign.is_named_in(row))
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the injection as JSON shows it."""
        return {
            "fault": self.fault.name,
            "family": self.fault.family,
            "report": self.fault.report_address,
            "status": self.status,
            "must_be": self.fault.sign.kind.value,
            "kinds": [kind.value for kind in self.kinds],
            "rows": [row.to_dict() for row in self.rows],
        }


def inject(
    faults: Iterable[Fault], pool: RankPool, *, seed: int = 0, cuda: bool = False
) -> Iterator[Injection]:
    """Run the cases of faults.

    Args:
        faults: The faults.
        pool: The ranks.
        seed: Seed of the run.
        cuda: Whether the ranks have a CUDA device; without one some faults are not run.

    Yields:
        One injection per fault, as its last case ends.

    Raises:
        harness.ranks.RankStartError: If no ranks can be started.
    """
    for fault in faults:
        if fault.needs_cuda and not cuda:
            yield Injection(fault, ())
            continue
        options = RunOptions(arm=fault.judged_arm, seed=seed, case_timeout=fault.case_timeout)
        again = f"ckpt-lab faults --fault {fault.name} --seed {seed} --ranks {pool.size}"
        rows = (run_case(case, pool, options) for case in fault.cases)
        yield Injection(fault, tuple(replace(row, command=again) for row in rows))


def has_cuda(pool: RankPool) -> bool:
    """Tell whether every rank of a pool has a CUDA device.

    Args:
        pool: The ranks.

    Raises:
        harness.ranks.RankStartError: If no ranks can be started.
    """
    return all(bool(result.value) for result in pool.run(_CUDA_HERE, None, 60.0))


def cuda_here(payload: object, context: object) -> bool:
    """Tell whether a rank has a CUDA device; a task for :meth:`harness.ranks.RankPool.run`."""
    import torch

    return torch.cuda.is_available()
