"""Every benchmark of the command."""

from __future__ import annotations

from collections.abc import Sequence

from harness.bench.benchmark import GROUPS, Benchmark
from harness.bench.convolution import CONVOLUTION
from harness.bench.growth import GROWTH
from harness.bench.imports import IMPORT_TIME
from harness.bench.lab_rate import LAB_RATES
from harness.bench.memory import MEMORY
from harness.bench.night import NIGHT
from harness.bench.overhead import OVERHEADS
from harness.bench.own_share import OWN_SHARE
from harness.bench.timed_commands import COMMANDS
from matrix.choices import no_such

BENCHMARKS: tuple[Benchmark, ...] = (
    *OVERHEADS,
    OWN_SHARE,
    IMPORT_TIME,
    *LAB_RATES,
    *COMMANDS,
    *MEMORY,
    CONVOLUTION,
    *GROWTH,
    NIGHT,
)
"""In the order of the tables."""


def choose(names: Sequence[str], group: str | None) -> list[Benchmark]:
    """Return the benchmarks that are asked for.

    Args:
        names: by name, in this order.
        group: all of a group, where no name is given; the quick one for None.

    Raises:
        ValueError: a name or the group is unknown, or both are given.
    """
    if names and group is not None:
        raise ValueError(f"Give names or a group, not both; got {' '.join(names)} and {group}.")
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    for name in names:
        if name not in known:
            raise ValueError(no_such("benchmark", name, known))
    if names:
        return [known[name] for name in dict.fromkeys(names)]
    group = group or "quick"
    if group not in GROUPS:
        raise ValueError(no_such("group", group, GROUPS))
    return [benchmark for benchmark in BENCHMARKS if benchmark.group == group]
