"""Known findings: a file that lists them with their reasons, so that a run can be green with them.

The file is JSON::

    {"schema": 1, "known": [
      {"case": "dropout,*", "path": "gradients/*", "arm": "*", "reason": "why this is accepted"}
    ]}

``case``, ``path`` and ``arm`` are shell patterns; a path is matched without the index in brackets.
``arm`` may be left out. A case all of whose findings are known counts as expected to differ; a
listed finding that no case shows any more is reported.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.findings import Finding
from harness.row import Row

SCHEMA = 1
_REQUIRED = ("case", "path", "reason")
_ALLOWED = (*_REQUIRED, "arm")
_MARK = "known: "


class BaselineError(ValueError):
    """A baseline file cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """One known finding."""

    case: str
    """Pattern of case ids."""
    path: str
    """Pattern of finding paths, without an index."""
    reason: str
    """Why it is accepted."""
    arm: str = "*"
    """Pattern of arms."""

    @property
    def text(self) -> str:
        """The finding in one line."""
        arm = "" if self.arm == "*" else f" (arm {self.arm})"
        return f"{self.case} · {self.path}{arm}: {self.reason}"

    def concerns(self, row: Row) -> bool:
        """Tell whether a row is one of its cases."""
        return _matches(row.case, self.case) and _matches(row.arm, self.arm)

    def covers(self, finding: Finding) -> bool:
        """Tell whether it is the finding, in a row that it concerns."""
        return _matches(finding.path.partition("[")[0], self.path)


@dataclass(frozen=True)
class Baseline:
    """The known findings of a run."""

    known: tuple[Known, ...] = ()
    """In the order of the file; the first that matches gives the reason."""

    def mark(self, row: Row) -> Row:
        """Return the row with its known findings marked.

        Args:
            row: A row as it was judged.

        Returns:
            The row; its outcome is ``expected_difference`` where all its findings are known.
        """
        listed = [known for known in self.known if known.concerns(row)]
        if row.passed or not listed or not row.findings:
            return row
        marked, unknown = [], 0
        for finding in row.findings:
            match = next((known for known in listed if known.covers(finding)), None)
            if match is None:
                unknown += 1
                marked.append(finding)
            elif finding.cause.startswith(_MARK):
                marked.append(finding)
            else:
                marked.append(replace(finding, cause=f"{_MARK}{match.reason} ({finding.cause})"))
        outcome = row.outcome if unknown else "expected_difference"
        return replace(row, findings=tuple(marked), outcome=outcome)

    def vanished(self, rows: Sequence[Row]) -> list[Known]:
        """Return the known findings whose cases were run and that none of them shows any more."""
        return [
            known
            for known in self.known
            if (concerned := [row for row in rows if known.concerns(row)])
            and not any(known.covers(f) for row in concerned for f in row.findings)
        ]


def read_baseline(path: Path) -> Baseline:
    """Read a file of known findings.

    Args:
        path: The file.

    Raises:
        BaselineError: If it is not there or not of the form this module describes.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BaselineError(f"there is no baseline file {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BaselineError(f"cannot read baseline file {path}: {error}") from None
    if not isinstance(content, Mapping) or content.get("schema") != SCHEMA:
        raise BaselineError(f"{path} is no baseline file: it needs 'schema': {SCHEMA} and 'known'")
    entries = content.get("known")
    if not isinstance(entries, list):
        raise BaselineError(f"{path}: 'known' must be a list, got {entries!r}")
    return Baseline(tuple(_known(entry, path) for entry in entries))


def _known(entry: Any, path: Path) -> Known:
    if not isinstance(entry, Mapping) or not all(isinstance(v, str) for v in entry.values()):
        raise BaselineError(f"{path}: {entry!r} is no entry; it needs texts {', '.join(_REQUIRED)}")
    missing = [name for name in _REQUIRED if not entry.get(name)]
    unknown = [name for name in entry if name not in _ALLOWED]
    if missing or unknown:
        problem = f"lacks {missing[0]!r}" if missing else f"has no field {unknown[0]!r}"
        raise BaselineError(f"{path}: {dict(entry)!r} {problem}; fields: {', '.join(_ALLOWED)}")
    return Known(**entry)


def _matches(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern)
