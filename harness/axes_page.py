"""The page on the axes of the matrix, and on what of it is no case."""

from __future__ import annotations

from matrix.axes import AXES, Axis
from matrix.constraints import CONSTRAINTS
from matrix.subject import Subject
from matrix.subjects import SUBJECTS
from matrix.values import value_text

_KINDS = {
    "inapplicable": "the option does not exist there, so another case runs the same",
    "raises": "ordinary training itself raises",
    "checkpoint_raises": "torch's own checkpoint raises",
    "meaningless": "ordinary training computes nothing there, or something that is wrong",
    "by_chance": "whether torch's own checkpoint raises is drawn at random",
    "elsewhere": "it is run on another device",
}


def axes_page() -> str:
    """Return docs/axes.md: every axis with its values, and every exclusion with its reason."""
    lines = [
        "# Axes",
        "",
        "Made by `ckpt-lab list --axes`, from `matrix/axes.py` and `matrix/constraints.py`. A "
        "subject that",
        "has no use for an axis keeps its default.",
        "",
        "| axis | values, the default first | what it varies | subjects |",
        "|---|---|---|---|",
        *map(_axis_line, AXES),
        "",
        "## What is no case",
        "",
        "A test proves each of these. `batch_norm=on` are the subjects that may have a BatchNorm.",
        "",
        *(f"- *{kind.replace('_', ' ')}*: {meaning}." for kind, meaning in _KINDS.items()),
        "",
        "| left out | kind | because |",
        "|---|---|---|",
    ]
    for rule in CONSTRAINTS:
        condition = rule.text.replace("|", r"\|").replace(",", ", ")
        lines.append(f"| `{condition}` | {rule.kind.replace('_', ' ')} | {rule.reason} |")
    return "\n".join(lines) + "\n"


def _axis_line(axis: Axis) -> str:
    others = [value_text(value) for value in axis.values if value != axis.default]
    values = ", ".join([value_text(axis.default), *others])
    having = sum(_varies(axis, subject) for subject in SUBJECTS)
    subjects = "all" if having == len(SUBJECTS) else f"{having} of {len(SUBJECTS)}"
    if axis.opt_in:
        subjects += ", where asked for"
    return f"| `{axis.name}` | {values} | {axis.doc} | {subjects} |"


def _varies(axis: Axis, subject: Subject) -> bool:
    if axis.option is not None and axis.name not in subject.options:
        return False
    kept = [part.only[axis.name] for part in subject.narrowings if axis.name in part.only]
    return all(len(values) > 1 for values in kept)
