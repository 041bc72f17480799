"""The command ``ckpt-lab replay``."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.options import ArmName, Backend, CaseTimeout, Ranks, Seed
from harness.usage import bad_values_are_usage_errors, status_of


def replay(
    case_id: Annotated[str, typer.Argument(metavar="CASE-ID", help="As printed by 'list'.")],
    arm: ArmName = "checkpointed",
    ranks: Ranks = None,
    seed: Seed = 0,
    backend: Backend = "auto",
    case_timeout: CaseTimeout = 60.0,
) -> None:
    """Run one case again and print everything that was found."""
    from harness.one_case import OneCase
    from harness.report.terminal import make_console, show_findings
    from harness.row import exit_status

    with bad_values_are_usage_errors():
        one = OneCase.typed(
            case_id, arm=arm, ranks=ranks, seed=seed, case_timeout=case_timeout, backend=backend
        )

    def run() -> int:
        with one.runner() as run_case:
            row = run_case(one.case)
        show_findings(row, make_console(), everything=True)
        return exit_status([row])

    raise typer.Exit(status_of(run))
