from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

from typer.main import get_command

from harness.cli import app
from harness.request import RunRequest
from harness.resume import resume_command
from harness.revision import code_revision, commit, file_revision
from harness.shards import Shard


def test_a_run_by_default_is_resumed_by_its_folder_alone() -> None:
    assert resume_command(RunRequest(), Path("out")) == "ckpt-lab run --resume --out out"
    without = resume_command(RunRequest(checklist=False), Path("out"))
    assert without == "ckpt-lab run --no-checklist --resume --out out"


def test_the_command_has_every_option_that_was_given() -> None:
    request = RunRequest(
        suite="pr",
        subjects=("basic", "readme"),
        axes=("wrapper=ddp,none",),
        seed=3,
        arm=f"{__file__}:my install",
        group_size=1,
        shard=Shard(1, 2),
        out=Path("elsewhere"),
        case_timeout=2.5,
        stop_early=True,
        baseline=Path("known.json"),
    )

    words = shlex.split(resume_command(request, Path("a folder"), torchrun=True))

    assert words[:5] == ["torchrun", "...", "-m", "harness", "run"]
    assert words[-3:] == ["--resume", "--out", "a folder"]
    for option, value in [
        ("--suite", "pr"),
        ("--subject", "readme"),
        ("--axis", "wrapper=ddp,none"),
        ("--seed", "3"),
        ("--arm", f"{__file__}:my install"),
        ("--group-size", "1"),
        ("--shard", "1/2"),
        ("--case-timeout", "2.5"),
        ("--baseline", "known.json"),
    ]:
        assert (option, value) in zip(words, words[1:], strict=False)
    assert "-x" not in words


def test_every_option_in_a_command_exists() -> None:
    options = {name for param in get_command(app).commands["run"].params for name in param.opts}  # type: ignore[attr-defined]
    given = {"subjects": "subject", "axes": "axis", "stop_early": "-x"}

    for item in fields(RunRequest):
        name = given.get(item.name, item.name.replace("_", "-"))
        assert name in options or f"--{name}" in options


def test_a_revision_follows_the_sources(tmp_path: Path) -> None:
    arm = tmp_path / "arm.py"
    arm.write_text("one")
    first = file_revision(f"{arm}:install")
    arm.write_text("two")

    assert first != file_revision(f"{arm}:install")
    assert file_revision("harness.arms.ordinary:install") is None
    assert code_revision() == code_revision()
    assert commit() is None or len(str(commit())) == 12
