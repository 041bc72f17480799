"""Plots of what benchmarks measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from harness.bench.results import Document, Row

_COLOURS = {"pass": "tab:green", "fail": "tab:red", "undecided": "tab:orange"}
_STYLE: Any = {
    "svg.hashsalt": "wcn-ckpt",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
_METADATA = {"Date": None}


def draw(documents: Sequence[Document], folder: Path) -> list[Path]:
    """Draw what the documents hold, as SVG.

    Args:
        documents: of one machine; later ones replace figures of earlier ones.
        folder: where the plots go; made if it is missing.

    Returns:
        The files: `goals.svg`, every figure with a goal over its goal; `memory.svg`, what models
        keep; `growth.svg`, step time over voxels; `night.svg`, memory of the ranks over cases. A
        plot without data is left out.

    Raises:
        OSError: a file cannot be written.
    """
    from matplotlib.figure import Figure

    rows = {row["name"]: row for d in documents for row in d["benchmarks"] if "value" in row}
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with matplotlib.rc_context(_STYLE):
        for name, draw_on in _PLOTS.items():
            figure = Figure(layout="constrained")
            if draw_on(figure, rows):
                path = folder / f"{name}.svg"
                figure.savefig(path, metadata=_METADATA)
                drawn.append(path)
    return drawn


def _goals(figure: Any, rows: dict[str, Row]) -> bool:
    judged = [row for row in rows.values() if row["at_most"] or row["at_least"]]
    if not judged:
        return False
    figure.set_size_inches(8, 1 + 0.28 * len(judged))
    axes = figure.subplots()
    for place, row in enumerate(reversed(judged)):
        goal = row["at_most"] or row["at_least"]
        value, low, high = (row[key] / goal for key in ("value", "low", "high"))
        axes.errorbar(
            value,
            place,
            xerr=[[value - low], [high - value]],
            fmt="o" if row["at_most"] else "s",
            color=_COLOURS[row["verdict"]],
            capsize=3,
        )
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(judged)), [row["name"] for row in reversed(judged)])
    axes.set_xscale("symlog", linthresh=0.1)
    axes.set_xlabel("figure / goal; round: at most 1 is wanted, square: at least 1")
    return True


def _memory(figure: Any, rows: dict[str, Row]) -> bool:
    prefix = "saved-over-limit-"
    models = {n.removeprefix(prefix): r["details"] for n, r in rows.items() if n.startswith(prefix)}
    if not models:
        return False
    figure.set_size_inches(8, 4)
    axes = figure.subplots()
    for place, counts in enumerate(models.values()):
        whole = counts["ordinary"]
        for shift, arm in ((-0.2, "ordinary"), (0.2, "checkpointed")):
            outside = counts[f"{arm}_outside"] / whole
            inside = counts[arm] / whole - outside
            labels = {} if place else {"outside": f"{arm}, outside", "inside": f"{arm}, inside"}
            shade = 0.45 if arm == "ordinary" else 1.0
            axes.bar(
                place + shift,
                outside,
                0.36,
                color="tab:grey",
                alpha=shade,
                label=labels.get("outside"),
            )
            axes.bar(
                place + shift,
                inside,
                0.36,
                bottom=outside,
                color="tab:blue",
                alpha=shade,
                label=labels.get("inside"),
            )
    axes.set_xticks(range(len(models)), list(models), rotation=20)
    axes.set_ylabel("bytes kept for backward / those of ordinary training")
    axes.legend(title="kept of boundaries:")
    return True


def _growth(figure: Any, rows: dict[str, Row]) -> bool:
    row = rows.get("growth-exponent")
    if row is None:
        return False
    voxels, seconds = row["details"]["voxels"], row["details"]["seconds"]
    figure.set_size_inches(5, 4)
    axes = figure.subplots()
    axes.loglog(voxels, seconds, "o-", label=f"measured, exponent {row['value']:.2f}")
    axes.loglog(
        voxels,
        [seconds[0] * count / voxels[0] for count in voxels],
        "--",
        color="black",
        linewidth=1,
        label="linear",
    )
    axes.set_xlabel("voxels")
    axes.set_ylabel("seconds of a training step of MinkUNet18")
    axes.legend()
    return True


def _night(figure: Any, rows: dict[str, Row]) -> bool:
    row = rows.get("lab-memory-growth")
    if row is None:
        return False
    figure.set_size_inches(6, 4)
    axes = figure.subplots()
    for rank, sizes in enumerate(zip(*row["details"]["resident_mib"], strict=True)):
        axes.plot(row["details"]["cases"], sizes, label=f"rank {rank}")
    axes.set_xlabel("cases")
    axes.set_ylabel("resident size, MiB")
    axes.legend()
    return True


_PLOTS = {"goals": _goals, "memory": _memory, "growth": _growth, "night": _night}
