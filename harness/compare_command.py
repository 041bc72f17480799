"""The command ``ckpt-lab compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A results folder.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="A later results folder.")],
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a summary page.")
    ] = False,
    time_factor: Annotated[
        float,
        typer.Option(
            "--time-factor",
            metavar="FACTOR",
            help="Tell of cases that take this many times longer or shorter.",
        ),
    ] = 2.0,
) -> None:
    """Say what newly fails, what is fixed, and what changed in noise or time between two runs.

    Exit status: 0; 1 something newly fails; 2 the call is wrong.
    """
    from harness.comparison import compare_folders
    from harness.report.compared import comparison_markdown, comparison_text
    from harness.report.terminal import make_console
    from harness.store import StoreError

    if not time_factor > 1:
        raise typer.BadParameter(f"--time-factor {time_factor:g}: it must be more than 1")
    try:
        comparison = compare_folders(before, after, time_factor)
    except StoreError as error:
        raise typer.BadParameter(str(error)) from None
    if markdown:
        typer.echo(comparison_markdown(comparison))
    else:
        make_console().print(comparison_text(comparison))
    raise typer.Exit(int(bool(comparison.newly_failing)))
