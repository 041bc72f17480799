"""The verdicts on models that people train, as a page: made by ``python -m ci.verdicts``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import harness
from harness.findings import CauseKind
from harness.verification.advice import PRESERVE
from harness.verification.direct import changed_by_the_flag
from harness.verification.report import Report

MODELS: tuple[str, ...] = (
    *("Wav2Vec2ConformerModel", "MobileViTModel", "MobileViTV2Model", "SwiftFormerModel"),
    *("ParakeetEncoder", "LasrEncoder", "SegformerForSemanticSegmentation", "BertModel"),
    *("GPT2Model", "LlamaModel", "Qwen2Model", "MixtralModel", "MambaModel", "OPTModel"),
    *("T5Model", "BartModel", "WhisperModel", "ViTModel", "BeitModel", "Wav2Vec2Model"),
)
"""Classes of Transformers, those with a BatchNorm first."""

REASONS: dict[str, str] = {
    "T5Model": (
        "under its flag the layers make the zeros of their cross-attention's position bias require"
        " a gradient, and `scaled_dot_product_attention` then takes its kernel without fusion,"
        " which rounds otherwise. Checkpointing itself changes nothing: with"
        ' `attn_implementation="eager"` it is bitwise equal.'
    ),
}
"""Why a model differs under its flag, where that is known and no state is written twice."""

AXES: tuple[str, ...] = (
    *("steps=1", "accumulation=one,joint", "backward=plain,retained", "running_stats=on"),
    *("bn_momentum=as_built", "init_sync=on"),
)
"""How the axes are narrowed for the page."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found out about one model."""

    model: str
    """Class of Transformers."""
    report: Report
    """The report of verify."""
    changed: tuple[str, ...]
    """What two plain steps, without the lab, leave otherwise with the flag on."""
    changed_after: tuple[str, ...]
    """The same after ``preserve_replay_state``."""

    @property
    def confirmed(self) -> bool:
        """Whether both ways agree, before our line and after it."""
        after = self.report.remedied is None or self.report.remedied.passed
        return self.report.passed is not bool(self.changed) and after is not bool(
            self.changed_after
        )

    @property
    def finding(self) -> str:
        """What is wrong, in a few words; empty where nothing is."""
        twice = {
            finding.path.partition("/")[2].rpartition(".")[0]
            for finding in self.report.findings
            if finding.kind is CauseKind.REPEATED_UPDATE
        }
        if twice:
            nearest = min(twice, key=lambda name: (len(name.split(".")), name))
            more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
            return f"`{nearest}`{more} updated twice a step"
        first = next(iter(self.report.findings), None)
        if first is None:
            return ""
        size = "" if first.max_abs is None else f" differs by {first.max_abs:.0e}"
        return f"`{first.path.partition('[')[0]}`{size}"


def verdict_on(model: str, *, ranks: int = 2, local: bool = False) -> Verdict:
    """Verify a model and confirm the verdict.

    Args:
        model: A class of Transformers.
        ranks: Number of local ranks.
        local: Run the case with every axis at its default alone, in this process.

    Returns:
        The verdict.
    """
    if local:
        from harness.verification import targets

        report = harness.verify(
            lambda: targets.build_model(model),
            lambda seed: targets.build_inputs(None, model, seed),
            axes=(*AXES, "backward=plain", "accumulation=one", "autocast=off", "dropout=off"),
        )
    else:
        report = harness.verify(model, ranks=ranks, axes=AXES)
    return Verdict(
        model=model,
        report=report,
        changed=tuple(changed_by_the_flag(model)),
        changed_after=tuple(changed_by_the_flag(model, preserve=True)),
    )


def page(verdicts: Iterable[Verdict], versions: str) -> str:
    """Return the page.

    Args:
        verdicts: The verdicts.
        versions: Of torch and Transformers.
    """
    return "\n".join(_lines(list(verdicts), versions)) + "\n"


def _lines(verdicts: list[Verdict], versions: str) -> Iterator[str]:
    yield "# Verdicts on models of Transformers"
    yield ""
    yield f"Made by `python -m ci.verdicts` with {versions}: each model tiny, with random"
    yield "weights, under its own gradient checkpointing flag, on two ranks. *Confirmed* means that"
    yield "two plain training steps, one with the flag and one without, show the same without the"
    yield "lab: before our line, and after it."
    yield ""
    yield "| model | as it is | what is wrong | cases | after our line | confirmed |"
    yield "|---|---|---|---|---|---|"
    for verdict in verdicts:
        report = verdict.report
        if report.problem:
            yield f"| `{verdict.model}` | not judged | {report.problem} | | | |"
            continue
        remedied = report.remedied
        after = "-" if remedied is None else "all equal" if remedied.passed else remedied.outcome
        passed = sum(row.passed for row in report.rows)
        yield (
            f"| `{verdict.model}` | {'safe' if report.passed else '**not safe**'} "
            f"| {verdict.finding or '-'} | {passed} of {len(report.rows)} equal | {after} "
            f"| {'yes' if verdict.confirmed else '**no**'} |"
        )
    for verdict in verdicts:
        if verdict.model in REASONS and not verdict.report.passed:
            yield ""
            yield f"`{verdict.model}`: {REASONS[verdict.model]}"
    yield ""
    yield f"Our line: {PRESERVE}. To see one for yourself: `ckpt-lab verify {MODELS[0]}`."
