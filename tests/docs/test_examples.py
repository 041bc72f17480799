"""The scripts in docs/examples run, and train the same weights with and without checkpointing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

SCRIPTS = {
    "ddp_loop.py": (TORCHRUN, "torch", 8),
    "lightning_loop.py": ([], "lightning", 16),
    "hf_trainer.py": ([], "transformers", 16),
}
"""Script -> how it is launched, what it needs, and the steps of its two epochs."""


def run(script: str, launcher: list[str], *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / script), *options],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_trains_the_same_with_and_without(script: str, tmp_path: Path) -> None:
    launcher, needed, steps = SCRIPTS[script]
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{script} needs {needed}")
    with_file, without_file = tmp_path / "with.pt", tmp_path / "without.pt"

    printed = run(script, launcher, "--out", str(with_file))
    run(script, launcher, "--no-checkpointing", "--out", str(without_file))

    assert f"updates of the first BatchNorm: {steps}" in printed
    trained, ordinary = torch.load(with_file), torch.load(without_file)
    assert trained.keys() == ordinary.keys()
    assert all(torch.equal(trained[name], ordinary[name]) for name in ordinary)


def test_every_example_is_run() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"blocks.py"}

    assert scripts == set(SCRIPTS)
