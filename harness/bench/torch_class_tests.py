"""The tiny cases as tests of PyTorch's class; the program behind `TorchRanks`.

`python -m harness.bench.torch_class_tests COUNT` runs the first COUNT cases once for each line it
reads, and answers with seconds.
"""

from __future__ import annotations

import os
import sys
import time
import unittest
from collections.abc import Callable

import torch
from torch.testing._internal.common_distributed import MultiProcContinuousTest

from harness.bench.bare_loop import compare_arms
from harness.bench.lab_cases import jobs_of, tiny_cases
from harness.job import Job


class TinyCases(MultiProcContinuousTest):
    """One test for each case."""

    world_size = 2

    @classmethod
    def backend_str(cls) -> str:
        """The backend of the ranks' group."""
        return "gloo"


def _test(job: Job) -> Callable[[TinyCases], None]:
    def test(self: TinyCases) -> None:
        compare_arms(job, self.rank)

    return test


_CASES = tiny_cases()
for _index, _job in enumerate(jobs_of(_CASES)):
    setattr(TinyCases, f"test_{_index}", _test(_job))


def main() -> None:
    """Run the tests once for each line of standard input, and print how long that took."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    names = [f"test_{index}" for index in range(len(_CASES))][: int(sys.argv[1])]
    result = unittest.TestResult()
    for _ in sys.stdin:
        start = time.monotonic()
        for name in names:
            TinyCases(name).run(result)  # type: ignore[no-untyped-call]  # torch leaves it so
        seconds = time.monotonic() - start
        if not result.wasSuccessful() or result.skipped:
            (_, text), *_ = [*result.errors, *result.failures, *result.skipped]
            raise SystemExit(text)
        print(seconds, file=answers)
    TinyCases.tearDownClass()  # type: ignore[no-untyped-call]  # torch leaves it so


if __name__ == "__main__":
    # The ranks find the class by the name of its module.
    from harness.bench import torch_class_tests

    torch_class_tests.main()
