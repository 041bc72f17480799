"""A trace can be freed, whatever the arm left."""

from __future__ import annotations

import gc
import weakref

from harness.arms import ORDINARY
from harness.job import make_job
from harness.program import execute
from matrix.case import parse_case


def test_nothing_of_a_run_outlives_its_trace() -> None:
    job = make_job(parse_case("readme"), arm=ORDINARY, seed=0)
    trace = execute(job, ORDINARY, 0)
    module = weakref.ref(trace.module)
    assert trace.raised is None
    del trace
    gc.collect()

    assert module() is None
