"""What became of the faults, as a table in a terminal and in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from harness.faults.injection import Injection, Status
from harness.report.tables import show_table
from harness.report.terminal import show_findings

_STYLES: dict[Status, str] = {
    "caught": "green",
    "misnamed": "bold yellow",
    "missed": "bold red",
    "changes nothing": "bold red",
    "not run": "dim",
}
_WORDS: dict[Status, str] = {"misnamed": "caught but misnamed"}


def show_injections(injections: Sequence[Injection], console: Console) -> None:
    """Print one line per fault, then what is wrong with those that were not caught as they must.

    Args:
        injections: What became of each fault.
        console: Where to print.
    """
    rows = [
        [
            Text(injection.fault.name),
            Text(status_text(injection), style=_STYLES[injection.status]),
            Text(str(len(injection.rows))),
            Text(", ".join(kind.value for kind in injection.kinds) or "-"),
            Text(injection.fault.report),
        ]
        for injection in injections
    ]
    show_table(("fault", "result", "cases", "named", "stands for"), rows, console)
    for injection in injections:
        if injection.status not in ("caught", "not run"):
            _show_wrong(injection, console)
    console.print(summary(injections))


def status_text(injection: Injection) -> str:
    """Return what became of a fault, in a few words."""
    if injection.status == "misnamed":
        return f"caught but misnamed: must be {injection.fault.sign.kind.value}"
    if injection.status == "not run":
        return "not run: needs CUDA"
    return injection.status


def summary(injections: Sequence[Injection]) -> str:
    """Return how many faults there are and what became of them, in one line."""
    counts = Counter(injection.status for injection in injections)
    parts = [
        f"{counts[status]} {_WORDS.get(status, status)}" for status in _STYLES if counts[status]
    ]
    number = len(injections)
    return f"{number} fault{'' if number == 1 else 's'}: {', '.join(parts)}"


def exit_status(injections: Sequence[Injection]) -> int:
    """Return 0 where every fault that could be injected here was caught and rightly named."""
    return int(any(injection.status not in ("caught", "not run") for injection in injections))


def _show_wrong(injection: Injection, console: Console) -> None:
    sign = injection.fault.sign
    console.print(
        f"{injection.fault.name} ({status_text(injection)}): {injection.fault.doc}; "
        f"it must end as {sign.outcome}, with {sign.path} named {sign.kind.value}"
        + (f" and a cause like {sign.cause!r}" if sign.cause else "")
    )
    for row in injection.wrong_rows:
        show_findings(row, console)
