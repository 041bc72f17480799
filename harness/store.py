"""The results folder: what was asked, and one line for each case as it ends."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.revision import code_revision, commit
from harness.row import Row

RUN_FILE = "run.json"
RESULTS_FILE = "results.jsonl"
_RESULTS_PATTERN = "results*.jsonl"
_HOLDS_RESULTS = "{} already holds results; give another --out, or --resume to continue it"
_PACKAGES = ("wcn-ckpt", "torch", "deepdiff", "covertable")


class StoreError(ValueError):
    """A results folder cannot be used as asked."""


class Store:
    """Appends rows to a results folder, each on disk before the next case starts.

    While it is open no other run can use the folder.

    Args:
        folder: The results folder; made if it is not there.
        asked: What the run was asked to do; kept in ``run.json``.
        resume: Continue a run that was asked the same, with the same code and versions.
        tag: What the results file of a shard has in its name, for example ``3-of-8``.
        notes: What else a run must have in common with the one that it continues.

    Raises:
        StoreError: If the folder cannot be written, another run is using it, it holds a run or
            anything else already and ``resume`` is False, or there is no run to resume in it, or
            one of another configuration, or a damaged one.
    """

    def __init__(
        self,
        folder: Path,
        asked: Mapping[str, Any],
        *,
        resume: bool = False,
        tag: str = "",
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the folder; see the class."""
        self.folder = folder
        self._results = folder / (f"results.{tag}.jsonl" if tag else RESULTS_FILE)
        self._notes = dict(notes or {})
        self.rows: list[Row] = []
        """Rows of the run that is being continued."""
        with _os_errors_name(folder):
            if folder.exists() and not folder.is_dir():
                raise StoreError(f"{folder} is not a folder; give another --out")
            if resume:
                _check_begun(folder)
            folder.mkdir(parents=True, exist_ok=True)
            if not resume:
                _check_empty(folder)
            self._file = open(self._results, "a", encoding="utf-8")
        try:
            with _os_errors_name(folder):
                self._lock()
                if resume:
                    self._continue(asked)
                else:
                    self._begin(asked)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"another run is using {self.folder}; wait for it, or give another --out"
            ) from None

    def _begin(self, asked: Mapping[str, Any]) -> None:
        run_file = self.folder / RUN_FILE
        if run_file.exists():  # another run began and ended after the folder was found empty
            raise StoreError(_HOLDS_RESULTS.format(self.folder))
        content = {**self._configuration(asked), "commit": commit(), **_circumstances()}
        unfinished = run_file.with_suffix(".tmp")
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(run_file)

    def _configuration(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return what must be the same when the run is continued."""
        return {
            "asked": dict(asked),
            **self._notes,
            "code": code_revision(),
            "versions": {
                "python": platform.python_version(),
                **{package: _version(package) for package in _PACKAGES},
            },
        }

    def _continue(self, asked: Mapping[str, Any]) -> None:
        results = self._results
        if (self.folder / RUN_FILE).exists():
            before = _read_begun(self.folder / RUN_FILE)
            _check_same(before, self._configuration(asked), self.folder)
            self.rows = _read_and_mend(results)
        elif results.stat().st_size:
            raise StoreError(
                f"{self.folder} holds {results.name} but no {RUN_FILE}, so what its rows were "
                "asked is not known; give another --out"
            )
        else:
            self._begin(asked)

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
        """Write a row; it outlives this process however that ends.

        Raises:
            StoreError: If it cannot be written.
        """
        with _os_errors_name(self.folder):
            self._file.write(json.dumps(row.to_dict(), allow_nan=False) + "\n")
            self._file.flush()


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of a results folder; a torn last line is left out.

    Args:
        folder: The results folder.

    Raises:
        FileNotFoundError: If there is no results file in it.
        StoreError: If a line other than the last is damaged; the message names it.
    """
    files = results_files(folder)
    if not files:
        raise FileNotFoundError(f"no {RESULTS_FILE} in {folder}")
    return [row for path in files for row in _read_file(path)]


def results_files(folder: Path) -> list[Path]:
    """Return the results files of a folder: one, or one for each shard in it."""
    return sorted(folder.glob(_RESULTS_PATTERN))


def read_run(folder: Path) -> dict[str, Any]:
    """Return what ``run.json`` of a results folder says.

    Raises:
        FileNotFoundError: If there is none.
        StoreError: If it is damaged.
    """
    path = folder / RUN_FILE
    try:
        return {**json.loads(path.read_bytes())}
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({type(error).__name__}: {error})") from None


def _read_file(path: Path) -> list[Row]:
    lines = path.read_bytes().split(b"\n")
    return [_read_row(path, number, line) for number, line in enumerate(lines[:-1], 1) if line]


def _read_row(path: Path, number: int, line: bytes) -> Row:
    try:
        return Row.from_dict(json.loads(line))
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"line {number} of {path} cannot be read ({type(error).__name__}: {error}); "
            "repair or remove that line, or give another --out"
        ) from None


def _read_begun(run_file: Path) -> dict[str, Any]:
    try:
        content = {**json.loads(run_file.read_bytes())}
        return {**content, "asked": {**content["asked"]}}
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{run_file} cannot be read ({type(error).__name__}: {error}); give another --out"
        ) from None


def _check_begun(folder: Path) -> None:
    if not (folder / RUN_FILE).exists() and not results_files(folder):
        raise StoreError(f"{folder} holds no run to resume; leave --resume out to start one there")


def _check_empty(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    if RUN_FILE in names or results_files(folder):
        raise StoreError(_HOLDS_RESULTS.format(folder))
    if names:
        raise StoreError(f"{folder} is not empty, it holds {names[0]!r}; give another --out")


@contextmanager
def _os_errors_name(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{folder} cannot be used ({error}); give another --out") from error


def _read_and_mend(path: Path) -> list[Row]:
    """Read the rows and cut off a last line that a killed run left unfinished."""
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):
        os.truncate(path, len(complete))
    return _read_file(path)


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    was, is_now = _flat(before), _flat(json.loads(json.dumps(now)))
    was = {name: value for name, value in was.items() if name.partition(".")[0] in now}
    for name in {**is_now, **was}:
        if was.get(name) != is_now.get(name):
            raise StoreError(
                f"{folder} was run with {name.removeprefix('asked.')}={was.get(name)!r}, not "
                f"{is_now.get(name)!r}; resume it with the same, or give another --out"
            )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _circumstances() -> dict[str, Any]:
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
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
