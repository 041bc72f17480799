"""The lab without its extra says how to install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import needed

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]

HIDING = """
import importlib.util as util

find = util.find_spec
util.find_spec = lambda name, *args: None if name in ("typer", "rich") else find(name, *args)
"""


def test_nothing_is_missing_here() -> None:
    assert needed.what_is_missing() is None


def test_without_the_extra_the_command_prints_how_to_install_it() -> None:
    code = f"{HIDING}\nimport runpy\nrunpy.run_module('harness', run_name='__main__')\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert 'pip install "wcn-ckpt[lab]"' in done.stderr
    assert "rich, typer not found" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_extra_the_fixture_says_how_to_install_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(HIDING)
    pytester.makepyfile("def test_block(ckpt_lab): ...")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    result = pytester.runpytest_subprocess("-p", "harness.pytest_plugin")

    result.assert_outcomes(errors=1)
    assert 'pip install "wcn-ckpt[lab]"' in result.stdout.str()
