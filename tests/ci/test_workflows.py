"""The workflows: their commands are sound shell, and use what the generator prints."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from ci.matrix import jobs_of_shards, jobs_of_tests

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which(
    "shellcheck"
)
PRINTED = {
    "tests": set(next(iter(jobs_of_tests((ROOT / "pyproject.toml").read_text(encoding="utf-8"))))),
    "shards": set(next(iter(jobs_of_shards(1)))),
}


def jobs_of(path: Path) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return jobs


def commands(path: Path) -> Iterator[str]:
    for job in jobs_of(path).values():
        for step in job["steps"]:
            if "run" in step:
                yield step["run"]


def test_there_are_two_workflows() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_expression_is_pasted_into_a_command(path: Path) -> None:
    assert not [command for command in commands(path) if "${{" in command]


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed; the extra dev has it")
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_the_commands_are_sound_shell(path: Path) -> None:
    script = "#!/bin/bash\n" + "\n".join(f"(\n{command}\n)" for command in commands(path))
    assert SHELLCHECK is not None

    done = subprocess.run([SHELLCHECK, "-"], input=script, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_matrix_has_what_its_job_uses(path: Path) -> None:
    for name, job in jobs_of(path).items():
        used = set(re.findall(r"matrix\.(\w+)", str({**job, "strategy": None, "outputs": None})))
        matrix = re.search(r"plan\.outputs\.(\w+)", str(job.get("strategy")))
        available = PRINTED[matrix[1]] if matrix else {"outputs"} & used
        assert used - {"outputs"} <= available, f"{name} uses {used}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_is_run_is_there(path: Path) -> None:
    for command in commands(path):
        for name in re.findall(r"(?:^|\s)(\.?ci/[\w.]+)", command):
            assert (ROOT / name).is_file(), name
        for module in re.findall(r"-m (ci[\w.]*)", command):
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
