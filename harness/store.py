"""The results folder: what was asked, and one line for each case as it ends."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.row import Row

RUN_FILE = "run.json"
RESULTS_FILE = "results.jsonl"
_PACKAGES = ("wcn-ckpt", "torch", "deepdiff", "covertable")


class StoreError(ValueError):
    """A results folder cannot be used as asked."""


class Store:
    """Appends rows to a results folder, each on disk before the next case starts.

    Args:
        folder: The results folder; made if it is not there.
        asked: What the run was asked to do; kept in ``run.json``.
        resume: Continue a run that was asked the same.

    Raises:
        StoreError: If the folder holds a run already and ``resume`` is False, or that run was
            asked something else.
    """

    def __init__(self, folder: Path, asked: Mapping[str, Any], *, resume: bool = False) -> None:
        """Open the folder; see the class."""
        self.folder = folder
        self.rows: list[Row] = []
        """Rows of the run that is being continued."""
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"{folder} is not a folder; give another --out")
        if folder.is_dir() and any(folder.iterdir()) and not resume:
            raise StoreError(
                f"{folder} already holds results; give another --out, or --resume to continue it"
            )
        folder.mkdir(parents=True, exist_ok=True)
        run_file = folder / RUN_FILE
        if run_file.exists():
            _check_same(json.loads(run_file.read_text()), asked, folder)
        else:
            text = json.dumps({"asked": dict(asked), **_circumstances()}, indent=2)
            run_file.write_text(text + "\n")
        self.rows = _read_and_mend(folder / RESULTS_FILE)
        self._file = open(folder / RESULTS_FILE, "a", encoding="utf-8")

    def __enter__(self) -> Store:
        """Return the store."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._file.close()

    def append(self, row: Row) -> None:
        """Write a row; it outlives this process however that ends."""
        self._file.write(json.dumps(row.to_dict(), allow_nan=False) + "\n")
        self._file.flush()


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of a results folder; a torn last line is left out.

    Args:
        folder: The results folder.

    Raises:
        FileNotFoundError: If there is no results file in it.
        ValueError: If a line other than the last is damaged.
    """
    lines = (folder / RESULTS_FILE).read_text(encoding="utf-8").split("\n")
    return [Row.from_dict(json.loads(line)) for line in lines[:-1] if line]


def _read_and_mend(path: Path) -> list[Row]:
    """Read the rows and cut off a last line that a killed run left unfinished."""
    if not path.exists():
        return []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):
        os.truncate(path, len(complete))
    return read_rows(path.parent)


def _check_same(recorded: Mapping[str, Any], asked: Mapping[str, Any], folder: Path) -> None:
    before = recorded.get("asked", {})
    now = json.loads(json.dumps(dict(asked)))
    for name in {*before, *now}:
        if before.get(name) != now.get(name):
            raise StoreError(
                f"{folder} was run with {name}={before.get(name)!r}, not {now.get(name)!r}; "
                "resume it with the same options, or give another --out"
            )


def _circumstances() -> dict[str, Any]:
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": {
            "python": platform.python_version(),
            **{package: _version(package) for package in _PACKAGES},
        },
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cpus": os.cpu_count(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
