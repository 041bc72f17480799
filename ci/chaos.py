"""Runs the lab through planned disasters and checks that nothing is lost, wrong or left running.

``python -m ci.chaos`` runs 200 cases of which 10 hang, 10 lose a rank to SIGKILL and 10 raise on
one rank, and kills the lab itself twice on the way. In the end every case must be in the results
once, with its right outcome, and no process and no temporary file may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.chaos_arm import PLAN
from harness.job import make_job
from harness.request import RunRequest
from harness.resume import resume_command
from harness.row import Row
from harness.store import RESULTS_FILE, read_rows

_ARM = f"{Path(__file__).with_name('chaos_arm.py')}:install"
_HANGS = ("loop", "sleep in C", "collective")
_OUTCOMES = {**dict.fromkeys(_HANGS, "hung"), "SIGKILL": "crashed", "exception": "error"}
_SAID = {
    "loop": "in _loop",
    "sleep in C": "in _sleep_in_c",
    "collective": "in barrier",
    "SIGKILL": "was killed by SIGKILL",
    "exception": "ArithmeticError: planned disaster",
}
_GONE_SECONDS = 15.0
_AXES = (
    "bn_momentum=0.1",
    "running_stats=on",
    "autocast=off",
    "wrapper=ddp",
    "backward=plain,autograd.grad,retained,retained3",
    "accumulation=one,joint,sequential,plain_then_checkpointed,no_sync",
)
"""With buffer broadcast on and off: 40 cases a seed."""

_FEW_AXES = (*_AXES[:3], "wrapper=none", "backward=plain,retained", "accumulation=one,joint")
"""4 cases a seed, without DDP."""


@dataclass(frozen=True, kw_only=True)
class Disasters:
    """How much goes wrong."""

    hangs: int
    kills: int
    errors: int
    lab_kills: int
    """How often the lab itself is killed and resumed."""


class Chaos:
    """One run of the lab through disasters.

    Args:
        request: What is run; its arm is the one of the plan.
        disasters: How much goes wrong.
        folder: An empty folder for the plan, the results and all temporary files.
    """

    def __init__(self, request: RunRequest, disasters: Disasters, folder: Path) -> None:
        """Choose the cases in which something goes wrong."""
        self._request = request
        self._disasters = disasters
        self._out = folder / "out"
        self._temporary = folder / "temporary"
        self._temporary.mkdir()
        self._plan_file = folder / "plan.json"
        self._cases = {
            (case.id, seed): str(make_job(case, arm=_ARM, seed=seed).case_seed)
            for seed, selection in request.select().items()
            for case in selection.cases
        }
        names = [_HANGS[number % len(_HANGS)] for number in range(disasters.hangs)]
        names += ["SIGKILL"] * disasters.kills + ["exception"] * disasters.errors
        chosen = random.Random(request.seed).sample(list(self._cases), len(names))
        self._plan = dict(zip(chosen, names, strict=True))
        plan = {self._cases[key]: name for key, name in self._plan.items()}
        self._plan_file.write_text(json.dumps(plan))

    def run(self) -> list[str]:
        """Run the lab to the end, through its own deaths.

        Returns:
            What is not as it must be; empty where all is well.
        """
        problems = []
        command = shlex.split(resume_command(self._request, self._out))
        started = [*command[1:-3], "--out", str(self._out)]
        resumed = command[1:]
        for death in range(self._disasters.lab_kills):
            rows = len(self._cases) * (death + 1) // (self._disasters.lab_kills + 1)
            self._run_until(resumed if death else started, rows)
            problems += self._left_behind(f"after death {death + 1} of the lab")
        arguments = resumed if self._disasters.lab_kills else started
        status = self._start(arguments).wait()
        broken = self._disasters.hangs + self._disasters.kills
        expected = 3 if broken else int(bool(self._disasters.errors))
        if status != expected:
            problems.append(f"the lab ended with status {status}, not {expected}")
        return problems + self._left_behind("in the end") + self.wrong_rows()

    def _start(self, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments],
            env={**os.environ, PLAN: str(self._plan_file), "TMPDIR": str(self._temporary)},
            stdout=subprocess.DEVNULL,
        )

    def _run_until(self, arguments: Sequence[str], rows: int) -> None:
        results = self._out / RESULTS_FILE
        with self._start(arguments) as lab:
            while lab.poll() is None:
                if results.exists() and results.read_bytes().count(b"\n") >= rows:
                    break
                time.sleep(0.02)
            lab.send_signal(signal.SIGKILL)
        if lab.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the lab ended by itself, with status {lab.returncode}")

    def _left_behind(self, when: str) -> list[str]:
        deadline = time.monotonic() + _GONE_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [f"{when}, left behind: {name}" for name in left]

    def _left(self) -> list[str]:
        mark = f"{PLAN}={self._plan_file}".encode()
        processes = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if int(path.name) != os.getpid() and mark in (path / "environ").read_bytes():
                    processes.append(f"process {path.name}")
            except OSError:  # it has ended, or is another user's
                continue
        return processes + [str(path) for path in self._temporary.glob("ckpt-lab-*")]

    def wrong_rows(self) -> list[str]:
        """Return what is wrong with the results: cases lost, doubled or with a wrong outcome."""
        rows = read_rows(self._out)
        counts = Counter((row.case, row.seed) for row in rows)
        problems = [f"lost: {key}" for key in self._cases if not counts[key]]
        problems += [f"{count} times: {key}" for key, count in counts.items() if count > 1]
        problems += [f"not asked for: {key}" for key in counts if key not in self._cases]
        return problems + [text for row in rows if (text := self._wrong(row))]

    def _wrong(self, row: Row) -> str:
        name = self._plan.get((row.case, row.seed))
        expected = "equal" if name is None else _OUTCOMES[name]
        if row.outcome != expected:
            return f"{row.case} seed {row.seed}: {row.outcome}, not {expected}"
        if name is not None:
            rank = int(self._cases[row.case, row.seed]) % row.ranks
            said = [f"{f.cause} {f.got}" for f in row.findings if f.rank == rank]
            if not any(_SAID[name] in text for text in said):
                return f"{row.case} seed {row.seed}: rank {rank} says nothing of {_SAID[name]!r}"
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the lab through disasters and say what came of it.

    Args:
        arguments: The command line; ``sys.argv`` by default.

    Returns:
        The exit status: 1 if something is not as it must be.
    """
    parser = argparse.ArgumentParser(prog="python -m ci.chaos", description=__doc__)
    parser.add_argument("--few", action="store_true", help="24 cases, without DDP")
    parser.add_argument("--hangs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10, help="ranks killed")
    parser.add_argument("--errors", type=int, default=10, help="exceptions on one rank")
    parser.add_argument("--lab-kills", type=int, default=2, help="deaths of the lab itself")
    parser.add_argument("--case-timeout", type=float, default=10.0, help="seconds")
    given = parser.parse_args(arguments)
    request = RunRequest(
        suite="card",
        subjects=("basic",),
        axes=_FEW_AXES if given.few else _AXES,
        seeds=6 if given.few else 5,
        arm=_ARM,
        case_timeout=given.case_timeout,
    )
    disasters = Disasters(
        hangs=given.hangs, kills=given.kills, errors=given.errors, lab_kills=given.lab_kills
    )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        chaos = Chaos(request, disasters, Path(folder))
        problems = chaos.run()
    for problem in problems:
        print(problem, file=sys.stderr)
    cases = sum(len(selection.cases) for selection in request.select().values())
    print(
        f"{cases} cases, {given.hangs} hangs, {given.kills} killed ranks, {given.errors} errors, "
        f"{given.lab_kills} deaths of the lab: {len(problems)} problems, "
        f"{time.monotonic() - begun:.0f} s"
    )
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
