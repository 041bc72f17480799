"""The command ``ckpt-lab shrink``."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.options import ArmName, Backend, CaseTimeout, Ranks, Seed
from harness.usage import bad_values_are_usage_errors, status_of


def shrink(
    case_id: Annotated[str, typer.Argument(metavar="CASE-ID", help="A case that fails.")],
    arm: ArmName = "checkpointed",
    ranks: Ranks = None,
    seed: Seed = 0,
    backend: Backend = "auto",
    case_timeout: CaseTimeout = 60.0,
) -> None:
    """Find the smallest set of axis values with which a case still fails in the same way.

    Exit status: that of the failing case; 0 where it does not fail; 2 the call is wrong; 130
    interrupted.
    """
    from harness.one_case import OneCase
    from harness.report.terminal import make_console
    from harness.row import exit_status
    from harness.shrinking import shrink_and_show

    with bad_values_are_usage_errors():
        one = OneCase.typed(
            case_id, arm=arm, ranks=ranks, seed=seed, case_timeout=case_timeout, backend=backend
        )

    def run() -> int:
        with one.runner() as run_case:
            row = shrink_and_show(one.case, run_case, make_console())
        return exit_status([row])

    raise typer.Exit(status_of(run))
