"""The command ``ckpt-lab sensitivity``."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.options import Ranks, Seed
from harness.usage import bad_values_are_usage_errors, status_of


def sensitivity(
    subject: Annotated[
        list[str] | None,
        typer.Option("--subject", help="On this subject; repeatable. By default readme and basic."),
    ] = None,
    ranks: Ranks = None,
    seed: Seed = 0,
) -> None:
    """Measure how small a fault is seen: one number of the last rank is moved ever less.

    Exit status: 0; 2 the call is wrong; 3 the ranks could not be started; 130 interrupted.
    """
    from harness.ranks.launch import open_groups, resolve_size
    from harness.request import resolve_case
    from harness.sensitivity import measure, table

    with bad_values_are_usage_errors():
        names = subject or ["readme", "basic"]
        cases = [resolve_case(f"{name}{axis}") for name in names for axis in ("", ",autocast=bf16")]
        size = resolve_size(ranks)

    def run() -> int:
        with open_groups(size, size, "gloo") as (group,):
            typer.echo(table({case.id: measure(case, group, seed) for case in cases}))
        return 0

    raise typer.Exit(status_of(run))
