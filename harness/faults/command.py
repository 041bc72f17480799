"""`ckpt-lab faults`: injects faults, prints and writes what became of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.text import Text

from harness.faults.choice import faults_named
from harness.faults.fault import Fault
from harness.faults.injection import Injection, has_cuda, inject
from harness.faults.kill_matrix import Kills, kill_matrix, kills_table
from harness.faults.table import exit_status, show_injections
from harness.ranks import RankPool
from harness.report.tables import show_table
from harness.report.terminal import make_console
from matrix.suites import suite_named

SCHEMA = 1
"""Version of the JSON that is written."""

SUITES_COUNTED = ("smoke", "pr")
"""Suites that a kill matrix is made for."""

STANDARD_OUTPUT = "-"
"""In place of the name of a JSON file."""

_PLAIN_SECONDS = 20.0
_Done = TypeVar("_Done")


def list_faults(names: Sequence[str] = ()) -> None:
    """Print one row for each fault: name, the kind of cause it must be given, what is broken.

    Args:
        names: Names of the faults; none for all of them.

    Raises:
        ValueError: If there is no fault of a name.
    """
    rows = [
        [Text(fault.name), Text(fault.sign.kind.value), Text(fault.doc)]
        for fault in faults_named(names)
    ]
    show_table(("fault", "kind", "what is broken"), rows, make_console())


def run_faults(
    names: Sequence[str] = (),
    *,
    ranks: int = 2,
    seed: int = 0,
    out: Path | None = None,
    json_file: str | None = None,
    suite: str | None = None,
    sample: int | None = None,
    console: Console | None = None,
) -> int:
    """Inject faults and say for each whether the lab caught it and named it rightly.

    Args:
        names: Names of the faults; none for all of them.
        ranks: Number of ranks.
        seed: Seed of the run.
        out: Folder for ``faults.json`` and, with a suite, ``kill-matrix.md``; made if need be.
        json_file: File for the same JSON, or ``-`` for standard output, which then has no table.
        suite: Name of the suite whose cases are counted that see each fault; None for no count.
        sample: Most cases of the suite to try of each fault; None for all.
        console: Where to print; standard output by default.

    Returns:
        The exit status: 0 where every fault that could be injected was caught and rightly named.

    Raises:
        ValueError: If a name, the number of ranks or a file is of no use; before anything is run.
        harness.ranks.RankStartError: If no ranks can be started.
    """
    faults = faults_named(names)
    if ranks < 2:
        raise ValueError(f"faults between ranks need at least 2 of them, got --ranks {ranks}")
    if suite is not None and suite not in SUITES_COUNTED:
        raise ValueError(
            f"--kill-matrix: no count for {suite!r}; valid suites: {', '.join(SUITES_COUNTED)}"
        )
    if sample is not None and (suite is None or sample < 1):
        raise ValueError(f"--sample {sample}: at least 1 case, of the suite of --kill-matrix")
    quiet = json_file == STANDARD_OUTPUT
    files = [] if json_file is None or quiet else [Path(json_file)]
    if out is not None:
        files.append(_made(out) / "faults.json")
    for file in files:
        _check_writable(file)
    console = console or (Console(quiet=True) if quiet else make_console())
    with RankPool(ranks) as pool:
        cuda = has_cuda(pool)
        if not cuda:
            _refuse_to_leave_out(faults, names)
        injected = inject(faults, pool, seed=seed, cuda=cuda)
        injections = list(_progress(injected, faults, console, _fault_name))
        show_injections(injections, console)
        kills: list[Kills] = []
        if suite is not None:
            counted = kill_matrix(faults, suite_named(suite), pool, seed=seed, sample=sample)
            for item in _progress(counted, faults, console, _killed_name):
                kills.append(item)
                # A count takes long: what it has come to is on disk whatever ends it.
                _write(files, _document(injections, suite, kills))
            console.print(kills_table(suite, kills))
    document = _document(injections, suite, kills)
    _write(files, document)
    if out is not None and suite is not None:
        table = f"# Kill matrix\n\n{kills_table(suite, kills)}\n"
        (out / "kill-matrix.md").write_text(table, encoding="utf-8")
    if quiet:
        print(json.dumps(document, indent=2))
    return exit_status(injections)


def _write(files: Iterable[Path], document: dict[str, Any]) -> None:
    text = json.dumps(document, indent=2) + "\n"
    for file in files:
        file.write_text(text, encoding="utf-8")


def _refuse_to_leave_out(faults: Sequence[Fault], names: Sequence[str]) -> None:
    for fault in faults:
        if fault.needs_cuda and fault.name in names:
            raise ValueError(f"fault {fault.name!r} needs CUDA, and torch finds no device here")


def _document(
    injections: Sequence[Injection], suite: str | None, kills: Sequence[Kills]
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "faults": [injection.to_dict() for injection in injections],
    }
    if suite is not None:
        document["kill_matrix"] = {"suite": suite, "faults": [item.to_dict() for item in kills]}
    return document


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {folder}: cannot make the folder: {error}") from None
    return folder


def _check_writable(file: Path) -> None:
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ValueError(f"cannot write {file}: {error}") from None


def _fault_name(injection: Injection) -> str:
    return injection.fault.name


def _killed_name(kills: Kills) -> str:
    return kills.fault.name


def _progress(
    done: Iterable[_Done],
    faults: Sequence[Fault],
    console: Console,
    name: Callable[[_Done], str],
) -> Iterator[_Done]:
    """Pass things on; show the last one, live on a terminal and now and then elsewhere."""
    live = console.is_terminal and not console.quiet
    status: AbstractContextManager[Any] = console.status("starting") if live else nullcontext()
    told = time.monotonic()
    with status as shown:
        for number, thing in enumerate(done, start=1):
            text = f"{number}/{len(faults)}: {name(thing)}"
            if shown is not None:
                shown.update(text)
            elif time.monotonic() - told >= _PLAIN_SECONDS:
                told = time.monotonic()
                console.print(text)
            yield thing
