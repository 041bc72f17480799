from __future__ import annotations

import os
import subprocess
import sys

import pytest

LIST = [sys.executable, "-m", "harness", "list", "--subject", "basic"]


def test_a_reader_that_leaves_changes_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(LIST, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk_is_said_and_is_no_case_that_differs() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(LIST, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)

    assert done.returncode == 2
    assert "standard output was lost" in done.stderr and "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *LIST]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("basic") == closed.startswith("2")


def test_a_closed_output_leaves_a_run_its_status() -> None:
    replay = ["replay", "basic", "--arm", "torch_checkpoint", "--ranks", "1"]
    command = [sys.executable, "-m", "harness", *replay]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (1, "")
