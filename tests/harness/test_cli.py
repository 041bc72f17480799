from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.store import read_rows
from matrix.axes import AXES
from matrix.values import value_text
from tests.harness.conftest import Lab

FAULTY = f"{Path(__file__).parent}/faulty_arms.py"
ONE_CASE = ["--subject", "basic"]
for axis in AXES:
    if not axis.opt_in:
        ONE_CASE += ["--axis", f"{axis.name}={value_text(axis.default)}"]


ALONE = ["--ranks", "1"]
"""For tests of what is written and printed around cases: a rank takes seconds to start."""

FAILED = ["basic", "basic,accumulation=joint"]
Done = subprocess.CompletedProcess[str]


def lab(*arguments: str, cwd: Path | None = None) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        env=None if cwd is None else _environment(),
    )


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_that_goes_as_expected_ends_with_0_and_a_report(lab_here: Lab, folder: Path) -> None:
    done = lab_here("run", *ONE_CASE)

    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("report: ckpt-lab-results/")
    report = folder / last.removeprefix("report: ")
    assert "1 case: 1 equal" in report.read_text()
    assert "1 case: 1 equal" in (report.parent / "summary.md").read_text()
    names = {path.name for path in report.parent.iterdir()}
    assert names == {
        *("run.json", "results.jsonl", "summary.md", "junit.xml", "report.html"),
    }
    (row,) = read_rows(report.parent)
    assert (row.case, row.outcome, row.noise) == ("basic", "equal", None)
    asked = json.loads((report.parent / "run.json").read_text())["asked"]
    assert (asked["arm"], asked["ranks"], asked["subjects"]) == ("checkpointed", 2, ["basic"])


def varied(*axes: str) -> list[str]:
    """Return the options of the one case, with these values of some axes instead."""
    given = {axis.partition("=")[0]: axis for axis in axes}
    return [given.get(word.partition("=")[0], word) for word in ONE_CASE]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """Where torch's own checkpoint ran four cases, of which two differ; and what was printed."""
    folder = tmp_path_factory.mktemp("first")
    four = varied("running_stats=on,off", "accumulation=one,joint")
    call = ["run", *four, "--suite", "pr", "--arm", "torch_checkpoint", "--out", "first"]
    return folder, lab(*call, cwd=folder)


@pytest.fixture
def after_it(first_run: tuple[Path, Done], folder: Path) -> Path:
    """The current folder, a copy of the one in which it ran."""
    return Path(shutil.copytree(first_run[0], folder, dirs_exist_ok=True))


def test_a_case_that_differs_ends_with_1_and_its_cause(first_run: tuple[Path, Done]) -> None:
    folder, done = first_run

    assert done.returncode == 1
    outcomes = {row.case: row.outcome for row in read_rows(folder / "first")}
    assert outcomes == {
        "basic": "differs",
        "basic,accumulation=joint": "differs",
        "basic,running_stats=off": "equal",
        "basic,running_stats=off,accumulation=joint": "equal",
    }
    assert "BatchNorm1d 'conv1.1' was updated twice" in done.stdout
    assert "ckpt-lab replay basic --arm torch_checkpoint --seed 0 --ranks 2" in done.stdout
    assert done.stdout.splitlines()[-1] == "report: first/report.html"


def test_a_crash_ends_with_3(tmp_path: Path) -> None:
    arm = f"{FAULTY}:die"
    done = lab("run", *ONE_CASE, "--arm", arm, "--out", str(tmp_path / "out"))

    assert done.returncode == 3
    assert "rank 1 was killed by SIGKILL" in done.stdout


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("os:nope", "'os' has no attribute 'nope'"),
        ("three.py:x", "'three.py:x' cannot be called, it is 3"),
        ("raises.py:install", "ArithmeticError: planted"),
        ("exits.py:install", "SystemExit: 7"),
    ],
)
def test_an_arm_that_cannot_be_loaded_is_a_wrong_call(
    tmp_path: Path, arm: str, message: str
) -> None:
    (tmp_path / "three.py").write_text("x = 3\n")
    (tmp_path / "raises.py").write_text("raise ArithmeticError('planted')\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(7)\n")

    done = lab("run", *ONE_CASE, "--arm", arm, "--out", "out", cwd=tmp_path)

    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_replay_with_an_arm_that_cannot_be_loaded_is_a_wrong_call() -> None:
    done = lab("replay", "basic", "--arm", "os:nope")

    assert done.returncode == 2
    assert "'os' has no attribute 'nope'" in " ".join(done.stderr.split())


def test_a_replay_prints_every_finding_with_its_traceback(lab_here: Lab) -> None:
    done = lab_here("replay", "basic", "--arm", f"{FAULTY}:raise_in_forward")

    assert done.returncode == 1
    assert "ArithmeticError: planted on rank 1" in done.stdout
    assert "Traceback (most recent call last)" in done.stdout


def test_three_ranks_work() -> None:
    done = lab("replay", "basic,wrapper=ddp,accumulation=joint", "--ranks", "3")

    assert done.returncode == 0, done.stdout + done.stderr


def test_stopping_early_leaves_a_run_that_can_be_resumed(lab_here: Lab, folder: Path) -> None:
    out = folder / "out"
    two = [
        *varied("accumulation=one,joint"),
        *ALONE,
        "--arm",
        "torch_checkpoint",
        "--out",
        str(out),
    ]

    first = lab_here("run", *two, "-x")
    assert first.returncode == 1
    assert len(read_rows(out)) == 1
    assert "only 1 of 2 cases ran" in first.stdout and "covered" not in first.stdout
    assert "only 1 of 2 cases ran" in (out / "summary.md").read_text()

    with open(out / "results.jsonl", "a") as file:
        file.write('{"schema": 1, "case": "torn')
    second = lab_here("run", *two, "--resume")
    assert second.returncode == 1
    assert "(1 done before)" in second.stdout
    assert "covered" in second.stdout and "only" not in second.stdout
    assert sorted(row.case for row in read_rows(out)) == FAILED

    again = lab_here("run", *two)
    assert again.returncode == 2
    assert "already holds" in again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_ends_with_130_and_leaves_no_rank(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "harness", "run", *ONE_CASE, "--arm", f"{FAULTY}:hang"]
    out = tmp_path / "out"
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # also where it is ignored here
    )
    with process:
        assert process.stdout is not None
        assert "on 2 ranks" in process.stdout.readline()
        while len(ranks := _children(process.pid)) < 2:
            time.sleep(0.01)
        process.send_signal(number)
        rest = process.stdout.read()

    assert process.returncode == 130
    resume = f"ckpt-lab run {shlex.join(ONE_CASE)} --arm {FAULTY}:hang --resume --out {out}"
    assert f"interrupted after 0 of 1 cases; to go on: {resume}\n" in rest
    assert rest.splitlines()[-1] == f"report: {tmp_path}/out/report.html"
    assert (tmp_path / "out" / "junit.xml").exists()
    deadline = time.monotonic() + 15.0
    while any(map(_exists, ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_exists, ranks))


def _exists(process: str) -> bool:
    return Path(f"/proc/{process}").exists()


def _children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def test_list_prints_ids_and_count_prints_what_they_cover() -> None:
    ids = CliRunner().invoke(app, ["list", "--subject", "basic"]).output.split()
    count = CliRunner().invoke(app, ["list", "--suite", "card", "--count"]).output

    assert all(case_id.startswith("basic") for case_id in ids)
    assert "2880 cases" in count
    assert "2880 of 2880 possible tuples covered" in count
    assert "ruled out: 1440 (wrapper=none|fsdp2,broadcast_buffers=off" in count
    assert "thinned: nothing" in count


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(app, ["--version"])

    assert result.exit_code == 0
    assert result.output.startswith("ckpt-lab ")


def test_the_command_line_does_not_load_torch() -> None:
    code = "import harness.cli, harness.commands, sys; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_seeds_run_an_array_each_and_rows_say_which_also_under_ddp_on_one_rank(
    lab_here: Lab, folder: Path
) -> None:
    out = folder / "out"
    seeds = ["--seed", "4", "--seeds", "2"]
    done = lab_here("run", *varied("wrapper=ddp"), *ALONE, *seeds, "--out", str(out))

    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_rows(out)
    case = "basic,wrapper=ddp"
    assert [(row.case, row.seed, row.ranks) for row in rows] == [(case, 4, 1), (case, 5, 1)]
    assert "--seed 5" in rows[1].replay_command


def test_before_the_first_run_nothing_is_remembered(lab_here: Lab, folder: Path) -> None:
    assert "no run is recorded" in lab_here("list", "--count").stdout
    assert "no earlier run" in lab_here("run", "--last-failed").stderr


def test_what_failed_last_is_run_again_as_it_was_and_times_are_remembered(
    lab_here: Lab, after_it: Path
) -> None:
    again = lab_here("run", "--last-failed", "--out", "again")
    assert again.returncode == 1, again.stdout + again.stderr
    rows = read_rows(after_it / "again")
    assert sorted(row.case for row in rows) == FAILED
    assert {(row.arm, row.ranks) for row in rows} == {("torch_checkpoint", 2)}

    joint = lab_here("run", "--last-failed", "--axis", "accumulation=joint", "--out", "joint")
    assert joint.returncode == 1, joint.stdout + joint.stderr
    assert [row.case for row in read_rows(after_it / "joint")] == ["basic,accumulation=joint"]
    assert "nothing to run" in lab_here("run", "--last-failed", "--subject", "readme").stdout

    ours = lab_here("run", "--last-failed", "--arm", "checkpointed")
    assert ours.returncode == 0, ours.stdout + ours.stderr
    assert "2 cases on 2 ranks, arm checkpointed" in ours.stdout

    nothing = lab_here("run", "--last-failed")
    assert nothing.returncode == 0
    assert "nothing to run" in nothing.stdout
    assert "about " in lab_here("list", "--count").stdout


def test_a_rerun_of_what_failed_can_be_resumed(lab_here: Lab, after_it: Path) -> None:
    rerun = ["run", "--last-failed", "--arm", "torch_checkpoint", "--out", "again"]
    assert lab_here(*rerun, "-x").returncode == 1
    resumed = lab_here(*rerun, "--resume")

    assert "(1 done before)" in resumed.stdout, resumed.stdout + resumed.stderr
    assert sorted(row.case for row in read_rows(after_it / "again")) == FAILED


def test_known_findings_leave_a_run_green_and_vanished_ones_are_reported(
    lab_here: Lab, folder: Path
) -> None:
    known = [
        {"case": "basic", "path": "*", "arm": "torch_checkpoint", "reason": "it is the bare one"},
        {"case": "basic", "path": "gradients/*", "reason": "long ago"},
    ]
    (folder / "known.json").write_text(json.dumps({"schema": 1, "known": known}))
    arm = ["--arm", "torch_checkpoint"]
    call = ["run", *ONE_CASE, *ALONE, *arm, "--baseline", "known.json"]

    done = lab_here(*call, "--out", "out")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 case: 1 expected_difference" in done.stdout
    assert "known: it is the bare one" in done.stdout
    assert "no longer found, take it off the baseline: basic · gradients/*: long ago" in done.stdout
    (row,) = read_rows(folder / "out")
    assert row.findings and row.findings[0].cause.startswith("known: it is the bare one")
    for report in ("report.html", "summary.md"):
        text = (folder / "out" / report).read_text()
        assert "it is the bare one" in text and "long ago" in text


def test_an_expected_difference_ends_with_0_and_is_shown(lab_here: Lab, folder: Path) -> None:
    case = [
        argument.replace("basic", "dropout").replace("model_call", "rng_not_preserved")
        for argument in ONE_CASE
    ]
    done = lab_here("run", *case, *ALONE, "--out", str(folder / "out"))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 case: 1 expected_difference" in done.stdout
    assert "expected: with preserve_rng_state=False" in done.stdout
