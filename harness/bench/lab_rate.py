"""How fast the lab runs cases, over other ways to run the same ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from harness.bench.benchmark import Benchmark, Measurement
from harness.bench.lab_cases import bare_seconds, lab_seconds, tiny_cases
from harness.bench.paired import rate_ratio, time_pairs
from harness.bench.spawned import spawned_seconds
from harness.bench.torch_class import TorchRanks
from harness.ranks import RankPool
from harness.store import Store
from matrix.case import Case

Run = Callable[[], float]


def over_bare_loop(
    samples: int, most: int | None = None, ranks: RankPool | None = None
) -> Measurement:
    """Compare the lab with a bare loop in the same ranks.

    Args:
        samples: interleaved pairs, each over all cases.
        most: largest number of cases; all of them for None.
        ranks: the ranks, which stay open; two new ones for None.
    """
    cases = tiny_cases()[:most]
    with _lab(cases, ranks) as (lab, pool):
        return _compared(cases, lab, lambda: bare_seconds(cases, pool), samples)


def over_torch_class(samples: int, most: int | None = None) -> Measurement:
    """Compare the lab with PyTorch's test class that keeps its processes between tests.

    Args:
        samples: interleaved pairs, each over all cases.
        most: largest number of cases; all of them for None.
    """
    cases = tiny_cases()[:most]
    with _lab(cases) as (lab, _), TorchRanks(len(cases)) as ranks:
        return _compared(cases, lab, ranks.seconds, samples)


def over_spawning(samples: int, most: int | None = None) -> Measurement:
    """Compare the lab on all cases with processes that are started for each case.

    Args:
        samples: interleaved pairs; the processes run one case in each, the next one every time.
        most: largest number of cases of the lab; all of them for None.
    """
    cases = tiny_cases()[:most]
    turns = 0

    def spawned() -> float:
        nonlocal turns
        turns += 1
        return len(cases) * spawned_seconds(cases[turns % len(cases)])

    with _lab(cases) as (lab, _):
        return _compared(cases, lab, spawned, samples)


@contextmanager
def _lab(cases: Sequence[Case], ranks: RankPool | None = None) -> Iterator[tuple[Run, RankPool]]:
    """Yield what runs all cases in the lab, results on disk, and the pool of ranks it uses."""
    new_or_given = RankPool(2) if ranks is None else nullcontext(ranks)
    with tempfile.TemporaryDirectory() as folder, new_or_given as pool:
        with Store(Path(folder), {}) as store:
            yield lambda: lab_seconds(cases, pool, store), pool


def _compared(cases: Sequence[Case], lab: Run, other: Run, samples: int) -> Measurement:
    times = time_pairs(lab, other, samples, warm_up=1, seconds=lambda run: run())
    rates = {"cases": len(cases)}
    return rate_ratio([[pair] for pair in times], **rates)


LAB_RATES = (
    Benchmark(
        name="lab-over-bare-loop",
        group="quick",
        unit="ratio",
        doc="the lab's tiny DDP cases per second over a bare loop in the same ranks",
        run=over_bare_loop,
        samples=20,
        at_least=0.90,
    ),
    Benchmark(
        name="lab-over-torch-class",
        group="quick",
        unit="ratio",
        doc="the lab's tiny DDP cases per second over PyTorch's persistent test class",
        run=over_torch_class,
        samples=20,
        at_least=1.0,
    ),
    Benchmark(
        name="lab-over-spawning",
        group="quick",
        unit="ratio",
        doc="the lab's tiny DDP cases per second over one process spawn per case",
        run=over_spawning,
        samples=6,
        at_least=150.0,
    ),
)
