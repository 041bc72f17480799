"""One case as typed on the command line, and the ranks that run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.arms import Arm
from harness.ranks.launch import local_size, open_groups, resolve_size
from harness.request import check_device, pool_backend, resolve_arm, resolve_case
from harness.row import Row
from harness.runner import LOAD_SECONDS, RunOptions, check_arm, run_case
from matrix.case import Case


@dataclass(frozen=True, kw_only=True)
class OneCase:
    """A case, and how it is run."""

    case: Case
    arm: Arm
    """The arm that is judged."""
    ranks: int
    seed: int
    """Seed of the run that the case comes from."""
    case_timeout: float
    """Seconds until a case counts as hung."""
    backend: str
    """Backend of the process group, where the case is on CUDA."""

    @classmethod
    def typed(
        cls,
        case_id: str,
        *,
        arm: str,
        ranks: int | None,
        seed: int,
        case_timeout: float,
        backend: str,
    ) -> OneCase:
        """Resolve what was typed.

        Raises:
            ValueError: If something does not exist; the message says what does.
        """
        case, size = resolve_case(case_id), resolve_size(ranks)
        check_device(str(case.assignment["device"]), backend, local_size(size))
        return cls(
            case=case,
            arm=resolve_arm(arm),
            ranks=size,
            seed=seed,
            case_timeout=case_timeout,
            backend=backend,
        )

    @contextmanager
    def runner(self) -> Iterator[Callable[[Case], Row]]:
        """Start ranks, and stop them in the end.

        Yields:
            A function that runs this case, or another one, in the same way.

        Raises:
            harness.runner.ArmError: If the arm cannot be loaded.
            harness.ranks.RankStartError: If no ranks can be started.
        """
        backend = pool_backend(str(self.case.assignment["device"]), self.backend)
        options = RunOptions(arm=self.arm, seed=self.seed, case_timeout=self.case_timeout)
        with open_groups(self.ranks, self.ranks, backend) as (group,):
            check_arm(self.arm, group, max(LOAD_SECONDS, self.case_timeout))
            yield lambda case: run_case(case, group, options)
