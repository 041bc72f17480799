"""The checklist in a report: a few lines for a terminal, a section for Markdown, charts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from harness.checklist.answers import size_text
from harness.checklist.figures import Measurement
from harness.checklist.points import POINTS, Checklist
from harness.report.charts import Chart, bar_chart

_SHORT = {"pass": "pass", "finding": "FINDING", "not measured": "-"}


def show_checklists(checklists: Sequence[Checklist], console: Console) -> None:
    """Print one line for each checklist, and its findings.

    Args:
        checklists: The checklists.
        console: Where to print.
    """
    if not checklists:
        return
    width = max(len(item.name) for item in checklists)
    console.print(f"checklist: {', '.join(f'{point.number} {point.name}' for point in POINTS)}")
    for item in checklists:
        cells = "  ".join(f"{a.point.number} {_SHORT[a.status]}" for a in item.answers)
        console.print(f"  {item.name:<{width}}  {cells}")
        for answer in item.findings:
            for line in answer.lines:
                console.print(f"      {line}")


def checklist_markdown(checklists: Sequence[Checklist]) -> str:
    """Return a section of Markdown; empty where there is no checklist."""
    return "\n".join(_markdown_lines(checklists))


def cost_charts(measured: Mapping[str, Measurement]) -> list[Chart]:
    """Chart the memory and the time of both arms.

    Args:
        measured: Name -> what was measured.

    Returns:
        A chart of bytes kept for backward and one of the time of a step; none where nothing was
        measured.
    """
    if not measured:
        return []
    kept = {
        name: (
            (float(item.ordinary.saved_bytes), float(item.judged.saved_bytes)),
            f"{size_text(item.ordinary.saved_bytes)}, {size_text(item.judged.saved_bytes)}",
        )
        for name, item in measured.items()
        if item.ordinary.saved_bytes is not None and item.judged.saved_bytes is not None
    }
    steps = {
        name: (
            (item.ordinary.step, item.judged.step),
            f"{1e3 * item.ordinary.step:.1f} ms, {1e3 * item.judged.step:.1f} ms",
        )
        for name, item in measured.items()
    }
    return [
        bar_chart(
            "Memory kept for backward",
            "Bytes that a forward leaves for its backward: ordinary, then checkpointed.",
            kept,
        ),
        bar_chart(
            "Time of a training step",
            "Forward, backward and optimizer: ordinary, then checkpointed; the median of a few "
            "steps that took turns.",
            steps,
        ),
    ]


def _markdown_lines(checklists: Sequence[Checklist]) -> Iterator[str]:
    if not checklists:
        return
    yield "## Checklist"
    for item in checklists:
        yield ""
        yield f"### {item.name}: {item.summary}"
        yield ""
        yield "| point | answer | seen |"
        yield "|---|---|---|"
        for answer in item.answers:
            name, text = f"{answer.point.number}. {answer.point.name}", answer.text
            if answer.status == "finding":
                text += f". Cause: {answer.cause}. Remedy: {answer.remedy}"
            yield f"| {name} | {answer.status} | {_cell(text)} |"


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
