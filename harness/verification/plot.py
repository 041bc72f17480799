"""The plot of memory against step time for sets of boundaries."""

from __future__ import annotations

from pathlib import Path

from harness.verification.suggestion import Suggestion
from matrix.extras import import_extra

PLOT_FILE = "boundaries.svg"


def write_plot(folder: Path, suggestion: Suggestion) -> Path:
    """Write ``boundaries.svg``: bytes kept for backward against seconds of a step.

    Args:
        folder: The results folder.
        suggestion: What was measured.

    Returns:
        Where it was written.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
    """
    figures = import_extra("matplotlib.figure", "the plot of boundaries")
    figure = figures.Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    sets = [choice for choice in suggestion.sets if choice.kept_bytes is not None]
    axes.plot(
        [choice.kept_bytes / 1e6 for choice in sets if choice.kept_bytes is not None],
        [1e3 * choice.step for choice in sets],
        "-",
        color="0.7",
        zorder=1,
    )
    for choice in (*sets, *suggestion.candidates):
        if choice.kept_bytes is None:
            continue
        place = (choice.kept_bytes / 1e6, 1e3 * choice.step)
        axes.plot(
            *place, "o" if choice.safe else "x", color="tab:blue" if choice.safe else "tab:red"
        )
        axes.annotate(choice.label, place, textcoords="offset points", xytext=(5, 4), fontsize=8)
    if suggestion.budget is not None:
        axes.axvline(suggestion.budget / 1e6, color="0.5", linestyle="--", label="budget")
        axes.legend()
    axes.set_xlabel("kept for backward, MB")
    axes.set_ylabel("time of a training step, ms")
    axes.set_title("Sets of boundaries: crosses are not safe")
    path = folder / PLOT_FILE
    figure.savefig(path)
    return path
