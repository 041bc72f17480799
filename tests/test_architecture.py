"""Imports point one way: tests and ci, then harness, then matrix, then wcn_ckpt, then torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("wcn_ckpt", "matrix", "harness", "ci", "tests")
MAY_IMPORT = {
    "wcn_ckpt": {"wcn_ckpt"},
    "matrix": {"matrix", "wcn_ckpt"},
    "harness": {"harness", "matrix", "wcn_ckpt"},
    "ci": {"ci", "harness", "matrix", "wcn_ckpt"},
}
LARGEST_MODULE = 400

MODULES = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the top-level package of each import, however deep in the code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, package if node.level else (node.module or "").partition(".")[0]


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    return imported(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parts[0])


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_in_one_direction(path: Path) -> None:
    allowed = MAY_IMPORT[path.relative_to(ROOT).parts[0]]

    wrong = [
        (line, name) for line, name in imports_of(path) if name in OURS and name not in allowed
    ]

    assert not wrong, f"{name_of(path)} imports {wrong}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if ROOT / "wcn_ckpt" in path.parents], ids=name_of
)
def test_the_library_needs_torch_alone(path: Path) -> None:
    # torch itself requires typing_extensions, so it is there wherever torch is.
    allowed = {"torch", "typing_extensions", "wcn_ckpt", *sys.stdlib_module_names}

    wrong = [(line, name) for line, name in imports_of(path) if name not in allowed]

    assert not wrong, f"{name_of(path)} imports {wrong}"


def test_the_setup_runs_before_anything_is_installed() -> None:
    wrong = [
        (line, name)
        for line, name in imports_of(ROOT / "ci" / "setup_env.py")
        if name not in sys.stdlib_module_names
    ]

    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())

    assert lines <= LARGEST_MODULE, f"{name_of(path)} has {lines} lines: split it by idea"


def test_each_package_was_found() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in MODULES}

    assert found == set(MAY_IMPORT)


def test_an_import_inside_a_function_is_seen() -> None:
    source = "def late():\n    from harness.pool import Pool\n    from . import sibling\n"

    assert list(imported(source, "matrix")) == [(2, "harness"), (3, "matrix")]


def test_importing_the_library_does_not_import_the_compiler() -> None:
    """It takes longer than the rest of torch, and every rank would wait for it."""
    code = "import sys, wcn_ckpt.models, wcn_ckpt.nn.modules; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
