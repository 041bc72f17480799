"""The runs that are recorded, once the plain judgement has found a difference or an exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.arms import ORDINARY
from harness.job import Job
from harness.localize.locate import locate, share
from harness.localize.located import Localization
from harness.localize.recorder import Recorder
from harness.program import execute
from harness.trace import Trace


def localize(
    run: Callable[[str, Recorder], Trace], job: Job, rank: int, *, noise: float
) -> Localization:
    """Run both arms once more with a recorder, and compare what they did.

    A collective where the ranks are connected: every rank calls it, also one that saw nothing.

    Args:
        run: Runs an arm with a recorder.
        job: What is judged.
        rank: This rank.
        noise: Largest difference of the ordinary arm from itself.

    Returns:
        What was found on this rank, with what the others found.
    """
    ordinary, judged = Recorder(), Recorder()
    run(ORDINARY, ordinary)
    trace = run(job.arm, judged)
    found = locate(
        ordinary.recording,
        judged.recording,
        trace.module,
        rank,
        noise=noise,
        broadcasts=job.program.broadcast_buffers,
    )
    return found if job.program.wrapper == "none" else share(found)


def localize_alone(job: Job, rank: int) -> Localization:
    """Run the judged arm of a job once more with a recorder, alone and as far as it comes.

    Args:
        job: A job whose judged arm raised in a replay; without other ranks no wrapper is needed.
        rank: This rank.

    Returns:
        What was found until it raised again, if it did.
    """
    alone = replace(job, program=replace(job.program, wrapper="none"))
    recorder = Recorder()
    trace = execute(alone, job.arm, rank, watch=recorder.watch)
    return locate(None, recorder.recording, trace.module, rank, noise=0.0, broadcasts=False)
