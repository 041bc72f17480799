"""The command line and pytest in ranks that torchrun started; real processes."""

from __future__ import annotations

import json
import socket
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from harness.arms import arm_named
from harness.ranks import RankPool
from harness.runner import RunOptions, run_case
from harness.store import read_rows
from matrix.axes import AXES
from matrix.case import parse_case
from matrix.values import value_text
from tests.harness.processes import alive, wait_until
from tests.harness.torchrun_launch import LIMIT, ranks_of, run_torchrun, torchrun

ARMS = f"{Path(__file__).parent}/torchrun_arms.py"


def narrowed(**values: str) -> list[str]:
    """Return options for one subject, with one value for each axis that is not named."""
    options = ["--subject", "basic"]
    for axis in AXES:
        if not axis.opt_in:
            value = values.get(axis.name, value_text(axis.default))
            options += ["--axis", f"{axis.name}={value}"]
    return options


def outcomes(folder: Path) -> dict[str, str]:
    rows = read_rows(folder)
    found = {row.case: str(row.outcome) for row in rows}
    assert len(found) == len(rows)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


PYTEST_MODULE = """
from matrix.case import parse_case

def test_equal(check_case):
    assert check_case(parse_case("basic,wrapper=ddp")).ranks == 2

def test_differs(check_case):
    check_case(parse_case("basic,wrapper=ddp"), arm="torch_checkpoint")
"""
LAB = ["-m", "harness", "run"]
THREE = narrowed(bn_momentum="0.1,1.0,none", wrapper="ddp")


def pool_of(size: int, request: pytest.FixtureRequest) -> AbstractContextManager[RankPool]:
    """Return a pool of that size, one that the tests share if there is one."""
    shared = {1: "lone_rank", 2: "rank_pool"}
    if size in shared:
        return nullcontext(request.getfixturevalue(shared[size]))
    return RankPool(size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_torchrun_and_a_pool_come_to_the_same_outcomes(
    size: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    arm = "torch_checkpoint"
    mixed = narrowed(bn_momentum="0.1,none", running_stats="on,off", wrapper="none,ddp")

    status, output = run_torchrun(
        f"--nproc-per-node={size}", *LAB, *mixed, "--arm", arm, "--out", "out", cwd=tmp_path
    )

    assert status == 1, output
    assert f"cases on {size} ranks" in output
    found = outcomes(tmp_path / "out")
    assert set(found.values()) == {"equal", "differs"}
    assert {row.ranks for row in read_rows(tmp_path / "out")} == {size}
    with pool_of(size, request) as pool:
        options = RunOptions(arm=arm_named(arm))
        rows = [run_case(parse_case(case), pool, options) for case in found]
    assert {row.case: row.outcome for row in rows} == found


def test_two_groups_of_two_ranks_run_side_by_side(tmp_path: Path) -> None:
    cases = narrowed(bn_momentum="0.1,1.0,none", accumulation="one,joint")

    status, output = run_torchrun(
        *("--nproc-per-node=4", *LAB, *cases, "--group-size", "2"),
        *("--arm", f"{ARMS}:meet_everyone", "--out", "out"),
        cwd=tmp_path,
    )

    assert status == 0, output
    assert "on 4 ranks in 2 groups of 2" in output
    assert set(outcomes(tmp_path / "out").values()) == {"equal"}
    assert {row.ranks for row in read_rows(tmp_path / "out")} == {2}
    places = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("place-*.json")}
    assert places == {
        f"place-{local}.json": {"RANK": str(local % 2), "WORLD_SIZE": "2"} for local in range(4)
    }


def test_what_fails_on_one_rank_ends_on_all_and_the_run_goes_on(tmp_path: Path) -> None:
    status, output = run_torchrun(
        *("--nproc-per-node=2", *LAB, *THREE, "--case-timeout", "10"),
        *("--arm", f"{ARMS}:fail_and_go_on", "--out", "out"),
        cwd=tmp_path,
    )

    assert status == 1, output
    assert outcomes(tmp_path / "out") == {
        "basic,wrapper=ddp": "error",
        "basic,bn_momentum=1.0,wrapper=ddp": "hung",
        "basic,bn_momentum=none,wrapper=ddp": "hung",
    }
    rows = {row.case: row for row in read_rows(tmp_path / "out")}
    first = rows["basic,wrapper=ddp"].findings[0]
    assert first.rank == 1 and "ArithmeticError: planted on rank 1" in str(first.got)
    first = rows["basic,bn_momentum=1.0,wrapper=ddp"].findings[0]
    assert first.rank == 1 and "_poll_for_ever" in str(first.got)
    assert "report: out/report.html" in output


def test_ranks_that_are_lost_are_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    cases = narrowed(bn_momentum="0.1,1.0,none", running_stats="on,off", wrapper="ddp")

    status, output = run_torchrun(
        *("--nproc-per-node=2", "--max-restarts=3", *LAB, *cases, "--case-timeout", "10"),
        *("--arm", f"{ARMS}:lose_ranks", "--out", "out"),
        cwd=tmp_path,
    )

    assert status == 1, output
    found = outcomes(tmp_path / "out")
    assert {case: found.pop(case) for case in list(found) if "running_stats" not in case} == {
        "basic,wrapper=ddp": "crashed",
        "basic,bn_momentum=1.0,wrapper=ddp": "hung",
        "basic,bn_momentum=none,wrapper=ddp": "crashed",
    }
    assert found and set(found.values()) == {"equal"}
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert f"{len(found) + 3} cases: {len(found)} equal, 1 hung, 2 crashed" in summary


def test_when_an_agent_is_killed_the_other_ends_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    cases = narrowed(
        bn_momentum="0.1,1.0,none", wrapper="ddp", accumulation="one,joint", steps="1,3"
    )
    command = [*LAB, *cases, "--arm", f"{ARMS}:be_slow", "--out", "out", "--case-timeout", "30"]
    nodes = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]

    port = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    with (
        torchrun(*nodes, port, *command, cwd=tmp_path) as first,
        torchrun(*nodes, port, *command, cwd=tmp_path) as second,
    ):
        results = tmp_path / "out" / "results.jsonl"
        assert wait_until(lambda: results.exists() and results.stat().st_size > 0, LIMIT)
        ranks = ranks_of(first) + ranks_of(second)
        second.kill()
        first.communicate(timeout=LIMIT)
        assert wait_until(lambda: not any(map(alive, ranks)), LIMIT)
    assert first.returncode == 1
    done = outcomes(tmp_path / "out")
    assert set(done.values()) == {"equal"}

    port = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    with (
        torchrun(*nodes, port, *command, "--resume", cwd=tmp_path) as first,
        torchrun(*nodes, port, *command, "--resume", cwd=tmp_path) as second,
    ):
        printed = first.communicate(timeout=LIMIT)[0] + second.communicate(timeout=LIMIT)[0]
    assert (first.returncode, second.returncode) == (0, 0), printed
    assert f"({len(done)} done before)" in printed
    found = outcomes(tmp_path / "out")
    assert len(found) > len(done) and set(found.values()) == {"equal"}
    assert "covered" in printed and "only" not in printed


def test_pytest_runs_its_cases_in_the_ranks_of_torchrun(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["harness.pytest_plugin"]\n')
    (tmp_path / "test_cases.py").write_text(PYTEST_MODULE)

    status, output = run_torchrun(
        *("--nproc-per-node=2", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("--rootdir=.", "--junitxml=report.xml", "test_cases.py"),
        cwd=tmp_path,
    )

    assert status == 1, output
    assert output.count("1 failed, 1 passed") == 1
    assert "BatchNorm1d 'conv1.1' was updated twice" in output
    assert "KeyboardInterrupt" not in output
    assert 'tests="2"' in (tmp_path / "report.xml").read_text()


def test_a_wrong_call_ends_every_rank_at_once(tmp_path: Path) -> None:
    status, output = run_torchrun(
        "--nproc-per-node=2", *LAB, "--ranks", "3", "--out", "out", cwd=tmp_path
    )

    assert status == 1
    assert "--ranks 3, but torchrun started 2 ranks" in " ".join(output.split())
    assert "exitcode  : 2" in output
    assert not (tmp_path / "out").exists()
