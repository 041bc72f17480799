"""The command line on ranks that are there already, for tests of what it writes and prints.

A rank takes seconds to start. What only a process shows, its exit status, what signals do to it and
the ranks that it starts itself, is tested with processes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from harness import commands, one_case
from harness.cli import app
from harness.ranks import RankPool, Ranks

Lab = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def lone_rank() -> Iterator[RankPool]:
    """A pool of one rank."""
    with RankPool(1) as pool:
        yield pool


@pytest.fixture
def lab_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Run the command line in this process and folder, on ranks that are shared."""

    @contextmanager
    def open_groups(size: int, group_size: int, backend: str) -> Iterator[Sequence[Ranks]]:
        yield [request.getfixturevalue({1: "lone_rank", 2: "rank_pool"}[size])]

    for module in (commands, one_case):
        monkeypatch.setattr(module, "open_groups", open_groups)

    def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(app, arguments, prog_name="ckpt-lab")
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return lab
