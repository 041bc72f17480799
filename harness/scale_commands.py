"""The commands of the command line for runs on several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Results folders of the shards.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Results folder of the whole run.")
    ],
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", help="The file of known findings that the shards ran with."),
    ] = None,
) -> None:
    """Merge the shards of a run; the report is that of one run.

    Exit status: as for run; 3 if a shard or a case is missing.
    """
    from harness.merging import merge as merge_folders
    from harness.store import StoreError

    try:
        status = merge_folders(folders, out, baseline)
    except (ValueError, StoreError) as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(status)


def predict(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Results folder with recorded times.")
    ],
    ranks: Annotated[int, typer.Option("--ranks", min=1, help="Ranks of each machine.")] = 2,
    shards: Annotated[int, typer.Option("--shards", min=1, help="Number of machines.")] = 1,
    startup: Annotated[
        float, typer.Option("--startup", min=0.0, help="Seconds until a shard starts its ranks.")
    ] = 2.0,
) -> None:
    """Predict how long the cases of a run take on other ranks and shards."""
    from harness.prediction import prediction_text

    try:
        text = prediction_text(folder, ranks=ranks, shards=shards, startup=startup)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(text)
