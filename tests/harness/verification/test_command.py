"""The command, on ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ODD = str(Path(__file__).with_name("odd_models.py"))
NARROW = (
    *("--axis", "backward=plain", "--axis", "accumulation=one", "--axis", "steps=1"),
    *("--axis", "wrapper=ddp", "--axis", "autocast=off", "--axis", "broadcast_buffers=on"),
)


def lab(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "verify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=200)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(__file__).resolve().parents[3])
    monkeypatch.setenv("PYTHONPATH", root)


def test_a_model_is_judged_on_ranks_and_reported_in_words_and_files(tmp_path: Path) -> None:
    done = lab(
        f"{ODD}:Layers",
        "--inputs",
        f"{ODD}:rows",
        *NARROW,
        "--suggest",
        "--out",
        "found",
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "safe to checkpoint: every check passed" in done.stdout
    assert "3 Plain made boundaries" in done.stdout
    assert "growing sets:" in done.stdout
    found = json.loads((tmp_path / "found" / "verify.json").read_text())
    assert [answer["status"] for answer in found["checklist"]] == ["pass"] * 6
    assert {row["axes"]["wrapper"] for row in found["cases"]} == {"none", "ddp"}
    assert "Checklist" in (tmp_path / "found" / "report.html").read_text()
    assert (tmp_path / "found" / "boundaries.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere:Model", "--inputs", f"{ODD}:rows"], "no module 'nowhere'"),
        (["missing.py:Model", "--inputs", f"{ODD}:rows"], "no file 'missing.py'"),
        ([f"{ODD}:Plain"], "--inputs is missing"),
        ([f"{ODD}:Plain", "--inputs", f"{ODD}:rows", "--budget", "8 GB?"], "is no size"),
        (["a model"], "names nothing"),
        (["BertModel", "--device", "gpu"], "no device 'gpu'"),
        ([f"{ODD}:Plain", "--inputs", f"{ODD}:rows", "--loss", f"{ODD}:none"], "--loss: "),
    ],
)
def test_a_wrong_call_gets_one_line(tmp_path: Path, arguments: list[str], line: str) -> None:
    done = lab(*arguments, cwd=tmp_path)

    assert done.returncode == 2
    assert line in done.stderr
    assert "Traceback" not in done.stderr
