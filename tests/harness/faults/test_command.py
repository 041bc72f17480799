from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from harness.cli import app
from harness.faults import FAULTS, command
from harness.faults.command import run_faults
from harness.ranks import RankPool


@pytest.fixture
def shared_pool(rank_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command use the ranks of the tests instead of starting its own."""

    class Lent:
        def __init__(self, size: int) -> None:
            assert size == rank_pool.size

        def __enter__(self) -> RankPool:
            return rank_pool

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(command, "RankPool", Lent)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def console() -> Iterator[Console]:
    yield Console(file=io.StringIO(), width=200, markup=False, highlight=False, soft_wrap=True)


def test_a_table_a_json_file_and_the_exit_status(
    shared_pool: None, console: Console, tmp_path: Path
) -> None:
    file = tmp_path / "faults.json"

    status = run_faults(
        ["rng-not-put-back", "codebook-moved"], json_file=str(file), console=console
    )

    assert status == 0
    text = printed(console)
    assert "2 faults: 2 caught" in text
    assert "pytorch/pytorch#14253" in text
    document = json.loads(file.read_text())
    assert [fault["status"] for fault in document["faults"]] == ["caught", "caught"]
    codebook, generator = document["faults"]
    assert codebook["fault"] == "codebook-moved" and codebook["must_be"] == "state_moved"
    assert generator["rows"][0]["command"].startswith("ckpt-lab faults --fault rng-not-put-back")


def test_a_folder_with_the_kill_matrix(shared_pool: None, console: Console, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"

    status = run_faults(["python-random"], out=out, suite="smoke", console=console)

    assert status == 0
    document: dict[str, Any] = json.loads((out / "faults.json").read_text())
    (counted,) = document["kill_matrix"]["faults"]
    assert document["kill_matrix"]["suite"] == "smoke"
    assert 0 < counted["seen"] <= counted["tried"]
    line = f"| `python-random` | {counted['seen']} of {counted['tried']} |"
    assert line in (out / "kill-matrix.md").read_text()
    assert line in printed(console)


def test_json_on_standard_output_is_all_there_is(
    shared_pool: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_faults(["codebook-moved"], json_file="-") == 0

    assert json.loads(capsys.readouterr().out)["schema"] == 1


def test_a_fault_that_needs_cuda_is_refused_by_name_where_there_is_none(
    shared_pool: None, rank_pool: RankPool, console: Console
) -> None:
    if command.has_cuda(rank_pool):
        pytest.skip("there is a CUDA device")
    with pytest.raises(ValueError, match="needs CUDA"):
        run_faults(["cuda-rng-not-preserved"], console=console)


def test_the_list_has_name_kind_and_what_is_broken() -> None:
    result = CliRunner().invoke(app, ["faults", "--list"])
    one = CliRunner().invoke(app, ["faults", "--list", "--fault", "python-random"])

    assert (result.exit_code, one.exit_code) == (0, 0)
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == "fault kind what is broken".split()
    assert [line.split()[:2] for line in lines] == [[f.name, f.sign.kind.value] for f in FAULTS]
    assert one.stdout.splitlines()[1].strip().split(maxsplit=2) == [
        "python-random",
        "random_drawn",
        "Python's random is not set back for the replay",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "double-updat"], "did you mean 'double-update'?"),
        (["--fault", ""], "no fault ''"),
        (["--list", "--fault", "nope"], "no fault 'nope'"),
        (["--ranks", "1"], "at least 2"),
        (["--kill-matrix", "night"], "no count for 'night'; valid suites: smoke, pr"),
        (["--kill-matrix", "pr", "--sample", "0"], "--sample 0: at least 1 case"),
        (["--sample", "5"], "of the suite of --kill-matrix"),
        (["--json", "/dev/null/faults.json"], "cannot write /dev/null/faults.json"),
        (["--out", "/dev/null/folder"], "cannot make the folder"),
    ],
)
def test_a_bad_call_gets_one_clear_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["faults", *arguments])

    assert result.exit_code == 2
    assert message in result.output.replace("\n", " ")
