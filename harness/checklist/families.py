"""The checklist of every family of blocks, out of the rows of a run and one measured step each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.arms import Arm
from harness.checklist.answers import checklist
from harness.checklist.figures import Measurement
from harness.checklist.points import Checklist
from harness.job import make_job
from harness.ranks import Ranks
from harness.row import Row
from matrix.case import Case
from matrix.subjects import SUBJECTS, subject_named

_MEASURE = "harness.checklist.measurement:measure"
_SECONDS = 60.0


@dataclass(frozen=True)
class Family:
    """Subjects that belong together."""

    name: str
    """As people call it."""
    subjects: tuple[str, ...]
    """Names of its subjects; the last one that was run is measured."""


_NAMED: tuple[Family, ...] = (
    Family("MinkUNet", ("basic", "basic-down", "bottleneck", "bottleneck-down", "minkunet")),
    Family("Point Transformer V3", ("patch-attention", "ptv3")),
    Family("SpaCeFormer", ("pre-norm", "post-norm", "stream-norm", "spaceformer")),
    Family(
        "TRELLIS.2 VAE",
        (
            *("convnext", "space-to-channel", "channel-to-space", "channel-to-space-predicted"),
            *("dual-grid-encoder", "dual-grid-decoder", "vae-encoder", "vae-decoder"),
        ),
    ),
    Family("DiT, dense", ("dit", "dit-cross", "structure-flow")),
    Family("DiT, sparse", ("sparse-dit", "sparse-dit-cross", "slat-flow")),
)

FAMILIES: tuple[Family, ...] = (
    *_NAMED,
    Family(
        "blocks with state",
        tuple(
            subject.name
            for subject in SUBJECTS
            if not any(subject.name in family.subjects for family in _NAMED)
        ),
    ),
)
"""Every family of the matrix; the last one has the small blocks that belong to no model."""


def family_checklists(
    rows: Sequence[Row], arm: Arm, group: Ranks
) -> tuple[list[Checklist], dict[str, Measurement]]:
    """Answer the six points for each family that rows are about.

    A family's answers about equality, calls and state come from its rows; boundaries, types,
    memory and time from one training step of its largest subject that was run.

    Args:
        rows: The rows of a run.
        arm: The arm that was judged.
        group: Ranks to measure on.

    Returns:
        One checklist for each family with a row, and what was measured, by family.

    Raises:
        harness.ranks.RankStartError: If no ranks can be started.
    """
    checklists: list[Checklist] = []
    measured: dict[str, Measurement] = {}
    for family in FAMILIES:
        own = [row for row in rows if row.subject in family.subjects]
        if own:
            measurement = _measurement(family, own, arm, group)
            checklists.append(checklist(family.name, own, measurement))
            if isinstance(measurement, Measurement):
                measured[family.name] = measurement
    return checklists, measured


def _measurement(family: Family, rows: Iterable[Row], arm: Arm, group: Ranks) -> Measurement | str:
    ran = {row.subject: row for row in rows}
    name = next(name for name in reversed(family.subjects) if name in ran)
    row = ran[name]
    case = Case.of(subject_named(name), {"device": row.axes.get("device", "cpu")})
    job = make_job(case, arm=arm.install, seed=row.seed, arm_arguments=arm.arguments)
    result = group.run(_MEASURE, job, _SECONDS)[0]
    if result.status == "returned":
        return result.value  # type: ignore[no-any-return]  # a task returns anything
    return f"the measured step {result.status}: {result.error}"
