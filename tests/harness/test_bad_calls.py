"""Each wrong call gets one line on standard error, with the nearest valid choice, and status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.row import Row
from harness.store import RESULTS_FILE, RUN_FILE, Store

ONE = ["run", "--subject", "readme"]


def check(arguments: list[str], *texts: str) -> None:
    """Check that a call is refused in one line that says all texts."""
    result = CliRunner().invoke(app, arguments, prog_name="ckpt-lab")

    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("ckpt-lab")
    for text in texts:
        assert text in result.stderr


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("unknown", "no command 'unknown'; valid commands: run, list, replay, shrink, compare"),
        ("runn", "no command 'runn'; did you mean 'run'?"),
        ("run --suit smoke", "no option '--suit'; did you mean '--suite'?"),
        ("run --zzz", "no option '--zzz' (see 'ckpt-lab run --help')"),
        ("run --suite", "'--suite' requires an argument"),
        ("run smoke", "unexpected extra argument"),
        ("run --suite smok", "no suite 'smok'; did you mean 'smoke'? valid suites: smoke, pr"),
        ("list --suite nigthly", "did you mean 'nightly'?"),
        ("run --suite zzz", "no suite 'zzz'; valid suites: smoke, pr, card, nightly"),
        ("run --subject basic-donw", "did you mean 'basic-down'?"),
        ("run --subject mink", "did you mean 'minkunet'?"),
        ("run --axis momentum=0.1", "no axis 'momentum'; did you mean 'bn_momentum'?"),
        ("run --axis wrapper", "'wrapper' is not of the form name=v1,v2"),
        ("run --axis wrapper=dpp", "did you mean 'ddp'? valid values: none, ddp"),
        ("run --axis bn_momentum=2", "no value '2'; valid values: 0.1, 1.0, none"),
        ("run --axis device=cuda", "choose the device with --device"),
        (
            "run --subject basic --axis wrapper=none --axis broadcast_buffers=off",
            "exclusions leave no case of wrapper=none, broadcast_buffers=off",
        ),
        ("run --arm chekpointed", "did you mean 'checkpointed'?"),
        ("run --arm none.py:install", "no file 'none.py'"),
        ("run --arm no_such_module:install", "no module 'no_such_module'"),
        ("run --ranks 0", "'0' is not a whole number from 1 to 64"),
        ("run --ranks=-1", "'-1' is not a whole number from 1 to 64"),
        ("run --ranks 1000", "'1000' is not a whole number from 1 to 64"),
        ("run --ranks two", "'two' is not a whole number from 1 to 64"),
        ("run --seed=-1", "'-1' is not a whole number of at least 0"),
        ("run --seeds 0", "'0' is not a whole number from 1 to 1000"),
        ("list --seeds 100000000", "'100000000' is not a whole number from 1 to 1000"),
        ("bench bondary-disabled", "did you mean 'boundary-disabled'?"),
        ("bench --group quik", "did you mean 'quick'?"),
        ("run --case-timeout=-5", "'-5' is not a number of seconds of at least 0.1"),
        ("run --case-timeout nan", "'nan' is not a number of seconds"),
        ("run --device gpu", "no value 'gpu'; did you mean 'cpu'? valid values: cpu, cuda"),
        ("run --backend glo", "no backend 'glo'; did you mean 'gloo'?"),
        ("run --backend nccl", "--backend nccl needs --device cuda"),
        ("run --shard 3", "--shard '3' is not of the form i/n"),
        ("run --shard 9/8", "shards are numbered from 1 to 8"),
        ("run --resume", "--resume needs --out"),
        ("replay", "Missing argument 'CASE-ID'"),
        ("replay basi", "no subject 'basi'; did you mean 'basic'?"),
        ("replay basic;wrapper=ddp", "no subject 'basic;wrapper=ddp'; did you mean 'basic'?"),
        ("replay basic,ddp", "'ddp' in case id 'basic,ddp' is not of the form axis=value"),
        ("replay basic,step=3", "no axis 'step'; did you mean 'steps'?"),
        ("replay basic,steps=2", "no value '2'; valid values: 1, 3"),
        ("replay basic,steps=3,steps=1", "names axis 'steps' twice"),
        ("replay basic,broadcast_buffers=off", "is excluded (wrapper=none"),
        ("replay dropout,bn_momentum=1.0", "it has no BatchNorm"),
        ("replay basic,autocast=fp16", "float16 is CUDA's and is run there"),
        ("shrink", "Missing argument 'CASE-ID'"),
        ("shrink basic,step=3", "no axis 'step'; did you mean 'steps'?"),
        ("shrink basic --arm ordinry", "did you mean 'ordinary'?"),
        ("sensitivity --subject reedme", "did you mean 'readme'?"),
        ("replay basic --ranks 99", "'99' is not a whole number from 1 to 64"),
    ],
)
def test_a_wrong_call(call: str, text: str) -> None:
    check(call.split(" "), text)


def test_a_call_that_cannot_be_met_by_this_machine() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    check(["run", "--device", "cuda"], "torch finds no CUDA device here; use --device cpu")
    check(["replay", "basic,device=cuda"], "torch finds no CUDA device here")


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    file, full = tmp_path / "file", tmp_path / "full"
    file.write_text("")
    full.mkdir()
    (full / "notes.txt").write_text("")
    results = tmp_path / "results"
    with Store(results, {}):
        pass

    check([*ONE, "--out", ""], "it is empty; give the name of a folder")
    check([*ONE, "--out", str(file)], "is not a folder")
    check([*ONE, "--out", str(file / "x")], "cannot be used")
    check([*ONE, "--out", "/proc/nope"], "cannot be used")
    check([*ONE, "--out", str(full)], "is not empty, it holds 'notes.txt'")
    check([*ONE, "--out", str(results)], "already holds results; give another --out, or --resume")


def test_a_run_that_cannot_be_resumed(tmp_path: Path) -> None:
    nothing, other, damaged = (tmp_path / name for name in ("nothing", "other", "damaged"))
    nothing.mkdir()
    for folder in (other, damaged):
        with Store(folder, {"suite": "pr"}) as store:
            store.append(_row())

    check([*ONE, "--resume", "--out", str(tmp_path / "none")], "holds no run to resume")
    check([*ONE, "--resume", "--out", str(nothing)], "holds no run to resume")
    check([*ONE, "--resume", "--out", str(other)], "was run with suite='pr', not 'smoke'")
    (damaged / RUN_FILE).write_text("{")
    check([*ONE, "--resume", "--out", str(damaged)], f"{RUN_FILE} cannot be read")


def test_results_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(["run", "--last-failed"], "there is no earlier run in this folder")

    with Store(tmp_path / "out", {}) as store:
        store.append(_row())
    Path("ckpt-lab-results").mkdir()
    Path("ckpt-lab-results/latest").write_text(str(tmp_path / "out"))
    with open(tmp_path / "out" / RESULTS_FILE, "a") as file:
        file.write(json.dumps({**_row().to_dict(), "schema": 99}) + "\n")
    check(["run", "--last-failed"], "line 2 of", "row has schema 99; this version reads 1")

    (tmp_path / "known.json").write_text('{"schema": 1, "known": [{"case": "*"}]}')
    check([*ONE, "--baseline", "none.json"], "there is no baseline file none.json")
    check([*ONE, "--baseline", "known.json"], "lacks 'path'; fields: case, path, reason, arm")
    check([*ONE, "--times", "none", "--shard", "1/2"], "none has no results")


def test_a_comparison_that_cannot_be_made(tmp_path: Path) -> None:
    good, empty = tmp_path / "good", tmp_path / "empty"
    empty.mkdir()
    with Store(good, {}) as store:
        store.append(_row())

    check(["compare", str(good)], "Missing argument 'AFTER'")
    check(["compare", str(good), str(tmp_path / "none")], "none is not a folder")
    check(["compare", str(good / RESULTS_FILE), str(good)], "is not a folder")
    check(["compare", str(good), str(empty)], "empty holds no results")
    check(["compare", str(good), str(good), "--time-factor", "1"], "must be more than 1")
    (good / RESULTS_FILE).write_text("{}\n")
    check(["compare", str(good), str(good)], f"line 1 of {good / RESULTS_FILE} cannot be read")


def _row() -> Row:
    return Row(
        case="readme",
        subject="readme",
        axes={},
        seed=0,
        arm="checkpointed",
        ranks=2,
        outcome="differs",
    )
