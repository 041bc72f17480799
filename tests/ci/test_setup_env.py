"""The setup reuses an environment that is current and sees one that is not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ci import setup_env

CONSTRAINTS = "# exact\nnumpy==2.0.1\ntorch==9.8.7 ; python_version >= '3.11'\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "ci").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "ci" / "constraints.txt").write_text(CONSTRAINTS)
    (tmp_path / "ci" / "setup_env.py").write_text("")
    return tmp_path


@pytest.fixture
def env(checkout: Path) -> Path:
    """An environment whose Python is the running one, stamped as finished."""
    python = setup_env.interpreter(checkout / ".venv")
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    setup_env.write_stamp(checkout / ".venv", setup_env.expected_stamp(checkout))
    return checkout / ".venv"


def record_pip(monkeypatch: pytest.MonkeyPatch, *, fails: str | None = None) -> list[str]:
    """Answer for pip; return the requirements that it is asked for, one call after another."""
    asked: list[str] = []

    def pip_install(env: Path, *arguments: str, root: Path, hide_failure: bool = False) -> bool:
        asked.append(" ".join(arguments))
        return fails is None or fails not in asked[-1]

    monkeypatch.setattr(setup_env, "pip_install", pip_install)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    return asked


def test_a_finished_environment_is_current(checkout: Path, env: Path) -> None:
    assert setup_env.is_current(env, setup_env.expected_stamp(checkout))


@pytest.mark.parametrize("path", ["pyproject.toml", "ci/constraints.txt"])
def test_a_changed_input_asks_for_an_update(checkout: Path, env: Path, path: str) -> None:
    (checkout / path).write_text("changed")
    expected = setup_env.expected_stamp(checkout)

    assert not setup_env.is_current(env, expected)
    assert setup_env.can_be_updated(env, expected)


@pytest.mark.parametrize("key", ["python", "root", "base"])
def test_another_python_or_place_asks_for_a_new_one(checkout: Path, env: Path, key: str) -> None:
    expected = setup_env.expected_stamp(checkout) | {key: "another"}

    assert not setup_env.is_current(env, expected)
    assert not setup_env.can_be_updated(env, expected)


def test_an_interrupted_setup_is_made_anew(checkout: Path, env: Path) -> None:
    setup_env.write_stamp(env, setup_env.UNFINISHED)
    expected = setup_env.expected_stamp(checkout)

    assert not setup_env.is_current(env, expected)
    assert not setup_env.can_be_updated(env, expected)


def test_an_environment_made_by_hand_is_kept_when_its_pip_works(checkout: Path, env: Path) -> None:
    (env / setup_env.STAMP).unlink()

    assert setup_env.can_be_updated(env, setup_env.expected_stamp(checkout))


def test_an_environment_without_a_python_is_made_anew(checkout: Path, env: Path) -> None:
    setup_env.interpreter(env).unlink()
    expected = setup_env.expected_stamp(checkout)

    assert not setup_env.is_current(env, expected)
    assert not setup_env.can_be_updated(env, expected)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_stamp_counts_as_none(env: Path, text: str) -> None:
    (env / setup_env.STAMP).write_text(text)

    assert setup_env.read_stamp(env) is None


def test_without_a_gpu_the_cpu_build_is_taken(
    checkout: Path, env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = record_pip(monkeypatch)
    monkeypatch.setattr(setup_env, "has_nvidia_gpu", lambda: False)
    monkeypatch.setenv("TORCH_CPU_INDEX", "file:///cpu wheels")

    setup_env.install_torch(env, checkout)

    assert asked == ["torch==9.8.7+cpu --extra-index-url file:///cpu wheels"]


def test_with_a_gpu_the_default_build_is_taken(
    checkout: Path, env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = record_pip(monkeypatch)
    monkeypatch.setattr(setup_env, "has_nvidia_gpu", lambda: True)

    setup_env.install_torch(env, checkout)

    assert asked == ["torch==9.8.7"]


def test_without_a_cpu_build_the_user_hears_what_the_default_costs(
    checkout: Path,
    env: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = record_pip(monkeypatch, fails="+cpu")
    monkeypatch.setattr(setup_env, "has_nvidia_gpu", lambda: False)
    monkeypatch.delenv("TORCH_CPU_INDEX", raising=False)

    setup_env.install_torch(env, checkout)

    assert asked == ["torch==9.8.7+cpu", "torch==9.8.7"]
    said = capsys.readouterr().err
    assert "several GB" in said and "TORCH_CPU_INDEX" in said


def test_a_step_that_fails_leaves_an_environment_to_go_on_from(
    checkout: Path, env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_pip(monkeypatch, fails="--editable")
    expected = setup_env.expected_stamp(checkout)

    with pytest.raises(setup_env.SetupError, match="could not install the project"):
        setup_env.install(env, checkout, expected)

    assert not setup_env.is_current(env, expected)
    assert setup_env.can_be_updated(env, expected)


def test_a_gpu_is_what_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    tool.write_text("#!/bin/sh\necho 'GPU 0: Some card'\n")
    tool.chmod(0o755)
    assert setup_env.has_nvidia_gpu()

    tool.write_text("#!/bin/sh\necho 'no devices'\nexit 9\n")
    assert not setup_env.has_nvidia_gpu()


def test_a_missing_pin_is_named(checkout: Path) -> None:
    assert setup_env.pinned(checkout, "torch") == "9.8.7"
    with pytest.raises(setup_env.SetupError, match="'scipy==VERSION'"):
        setup_env.pinned(checkout, "scipy")


def test_the_stamp_is_readable(env: Path) -> None:
    stamp = json.loads((env / setup_env.STAMP).read_text())

    assert stamp["state"] == "finished"
