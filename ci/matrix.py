"""Print the matrix of a CI workflow, as JSON for a hosted CI's dynamic matrix.

Run as ``python3 -m ci.matrix tests`` or ``python3 -m ci.matrix shards --count 8``, with the
standard library alone.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PINNED_PYTHON = "3.11"
"""The Python that the constraints are for."""
NEWEST_PYTHON = "3.13"
TORCHES = ("oldest", "stable", "nightly")
"""torch from CI's point of view; ``ci/install.sh`` installs each."""


def lower_bound(project: str, name: str) -> str:
    """Return the lowest version that the project accepts.

    Args:
        project: Text of ``pyproject.toml``.
        name: A dependency, or ``python``.

    Raises:
        ValueError: If there is no lower bound.
    """
    pattern = r'requires-python = ">=([0-9.]+)' if name == "python" else rf'"{name}>=([0-9.]+)'
    match = re.search(pattern, project)
    if match is None:
        raise ValueError(f"pyproject.toml has no lower bound of {name!r}")
    return match[1]


def jobs_of_tests(project: str) -> Iterable[dict[str, Any]]:
    """Yield the jobs that run the tests: each Python with each torch that supports it.

    Args:
        project: Text of ``pyproject.toml``.
    """
    oldest_python = lower_bound(project, "python")
    for python in (oldest_python, PINNED_PYTHON, NEWEST_PYTHON):
        for torch in TORCHES:
            if torch == "nightly" and python != NEWEST_PYTHON:
                continue  # the newest torch drops the oldest Python first
            yield {
                "python": python,
                "torch": torch,
                "may_fail": torch == "nightly",
                "oldest_torch": lower_bound(project, "torch"),
            }


def jobs_of_shards(count: int) -> Iterable[dict[str, Any]]:
    """Yield the jobs that run the shards of a suite.

    Args:
        count: Number of shards.

    Raises:
        ValueError: If there is none.
    """
    if count < 1:
        raise ValueError(f"--count {count}: there is at least one shard")
    for number in range(1, count + 1):
        yield {"shard": f"{number}/{count}", "tag": f"{number}-of-{count}"}


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python3 -m ci.matrix", description=__doc__)
    parser.add_argument("kind", choices=("tests", "shards"))
    parser.add_argument("--count", type=int, default=8, help="number of shards")
    arguments = parser.parse_args()
    if arguments.kind == "tests":
        jobs = jobs_of_tests((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    else:
        jobs = jobs_of_shards(arguments.count)
    try:
        print(json.dumps({"include": list(jobs)}))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
