"""Options that several commands of the command line have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Protocol

import typer

from harness.arms import ARMS
from harness.ranks import BACKENDS, MOST_RANKS
from harness.usage import seconds, whole_number
from matrix.axes import AXES
from matrix.subjects import SUBJECTS
from matrix.suites import SUITES


def folder_name(text: str) -> Path:
    """Read the name of a folder.

    Args:
        text: What was typed.

    Raises:
        typer.BadParameter: If it is empty.
    """
    if not text.strip():
        raise typer.BadParameter("it is empty; give the name of a folder")
    return Path(text)


MOST_SEEDS = 1000
"""How many seeds one run may have; each has an array of cases of its own."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def _names(things: Sequence[_Named]) -> str:
    return ", ".join(thing.name for thing in things)


Suite = Annotated[str, typer.Option("--suite", help=f"How much is run: {_names(SUITES)}.")]
Subjects = Annotated[
    list[str] | None,
    typer.Option("--subject", help=f"Only this one of: {_names(SUBJECTS)}; repeatable."),
]
AxisValues = Annotated[
    list[str] | None,
    typer.Option(
        "--axis",
        metavar="NAME=V1,V2",
        help=f"Narrow an axis to these values; repeatable. Axes: {_names(AXES)}.",
    ),
]
_ARM = f"The arm that is judged: {_names(ARMS)}, or 'file.py:install'."
ArmName = Annotated[str, typer.Option("--arm", help=_ARM)]
OptionalArmName = Annotated[
    str | None, typer.Option("--arm", help=_ARM, show_default="checkpointed")
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        parser=whole_number(1, MOST_RANKS),
        metavar="N",
        help="Number of local ranks: 2, or those of torchrun.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", parser=whole_number(0), metavar="N", help="Seed of the run.")
]
Seeds = Annotated[
    int,
    typer.Option(
        "--seeds",
        parser=whole_number(1, MOST_SEEDS),
        metavar="N",
        help="Number of seeds, from --seed on; each its own array.",
    ),
]
_DEVICE = "Where the models are: cpu or cuda."
Device = Annotated[str, typer.Option("--device", help=_DEVICE)]
OptionalDevice = Annotated[str | None, typer.Option("--device", help=_DEVICE, show_default="cpu")]
_BACKEND = f"Backend of the ranks' group on CUDA: {', '.join(BACKENDS)}."
Backend = Annotated[str, typer.Option("--backend", help=_BACKEND)]
OptionalBackend = Annotated[
    str | None, typer.Option("--backend", help=_BACKEND, show_default="auto")
]
CaseTimeout = Annotated[
    float,
    typer.Option(
        "--case-timeout",
        parser=seconds,
        metavar="SECONDS",
        help="Seconds until a case counts as hung.",
    ),
]
