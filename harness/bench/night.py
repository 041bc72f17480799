"""How the memory of the lab's ranks grows over a night."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from itertools import cycle, islice
from pathlib import Path

from harness.arms import arm_named
from harness.bench.benchmark import Benchmark, Measurement, NotMeasurableError
from harness.bench.estimate import slope_of
from harness.bench.lab_cases import tiny_cases
from harness.bench.machine import resident_memory
from harness.ranks import RankPool
from harness.runner import RunOptions, run_cases
from harness.store import Store
from matrix.case import parse_case

SHARDED = tuple(
    parse_case(f"readme,wrapper=fsdp2,backward={backward}")
    for backward in ("retained", "retained3")
)
"""Cases whose graphs are alive at the end, with functions of FSDP2 that hold modules."""

_WARM = 0.1
"""Part of the run in which caches fill; growth is what comes after it."""


def memory_over_a_night(
    samples: int, cases: int = 10_000, ranks: RankPool | None = None
) -> Measurement:
    """Run small cases in one pool of ranks, and fit the growth of each rank's resident size.

    The figure is the slope of the rank that grows most, in MiB per 1000 cases, without the first
    tenth of the run.

    Args:
        samples: how often memory is looked at, evenly over the run; at least 20.
        cases: how many cases are run, results on disk, the tiny and the sharded ones over and over.
        ranks: the ranks, which stay open; two new ones for None.

    Raises:
        ValueError: memory would be looked at too rarely, or more often than there are cases.
        NotMeasurableError: a case is not as expected, or ranks were replaced.
    """
    if not 20 <= samples <= cases:
        raise ValueError(
            f"memory has to be looked at 20 times or more, and at most once for each of the "
            f"{cases} cases, got {samples}"
        )
    kinds = [*tiny_cases(), *SHARDED]
    options = RunOptions(arm=arm_named("checkpointed"))
    looks = [round((index + 1) * cases / samples) for index in range(samples)]
    seen: list[list[float]] = []
    new_or_given = RankPool(2) if ranks is None else nullcontext(ranks)
    with tempfile.TemporaryDirectory() as folder, new_or_given as pool:
        with Store(Path(folder), {}) as store:
            rows = run_cases(islice(cycle(kinds), cases), pool, options)
            processes: list[int] = []
            for number, row in enumerate(rows, start=1):
                if not row.passed:
                    raise NotMeasurableError(f"{row.case} is {row.outcome}")
                store.append(row)
                processes = processes or pool.processes
                if number == looks[len(seen)]:
                    seen.append([resident_memory(process) for process in processes])
            if pool.processes != processes:
                raise NotMeasurableError("ranks were replaced, so no rank ran the whole night")
    first = round(_WARM * samples)
    thousands = [look / 1000 for look in looks]
    slopes = [
        slope_of(thousands[first:], [sizes[rank] for sizes in seen[first:]])
        for rank in range(len(processes))
    ]
    return Measurement(
        max(slopes, key=lambda slope: slope.value),
        {
            "cases": looks,
            "resident_mib": [[round(size, 2) for size in sizes] for sizes in seen],
            "slopes": [slope.value for slope in slopes],
            "total_growth_mib": [
                round(last - start, 2) for start, last in zip(seen[first], seen[-1], strict=True)
            ],
        },
    )


NIGHT = Benchmark(
    name="lab-memory-growth",
    group="long",
    unit="MiB / 1000 cases",
    doc="growth of the resident size of a rank over a night of 10 000 cases",
    run=memory_over_a_night,
    samples=100,
    at_most=5.0,
)
