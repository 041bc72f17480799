from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.matrix import jobs_of_shards, jobs_of_tests, lower_bound

ROOT = Path(__file__).resolve().parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def printed(*arguments: str) -> Any:
    command = [sys.executable, "-m", "ci.matrix", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.count("\n") == 1  # an output of a job is one line
    return json.loads(done.stdout)


def test_what_is_printed_is_a_matrix_of_jobs() -> None:
    assert printed("tests") == {"include": list(jobs_of_tests(PROJECT))}
    assert printed("shards", "--count", "3") == {"include": list(jobs_of_shards(3))}


def test_the_tests_run_on_the_lower_bounds_and_on_tonights_torch() -> None:
    jobs = [(job["python"], job["torch"]) for job in jobs_of_tests(PROJECT)]

    assert len(set(jobs)) == len(jobs)
    assert (lower_bound(PROJECT, "python"), "oldest") in jobs
    assert {torch for _, torch in jobs} == {"oldest", "stable", "nightly"}
    assert [job["torch"] for job in jobs_of_tests(PROJECT) if job["may_fail"]] == ["nightly"]


def test_shards_are_numbered_as_the_command_line_takes_them() -> None:
    from harness.shards import Shard

    jobs = list(jobs_of_shards(5))

    assert [Shard.parse(job["shard"]) for job in jobs] == [Shard(n, 5) for n in range(1, 6)]
    assert [Shard.parse(job["shard"]).tag for job in jobs] == [job["tag"] for job in jobs]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        list(jobs_of_shards(0))
    with pytest.raises(ValueError, match="no lower bound of 'nothing'"):
        lower_bound(PROJECT, "nothing")
