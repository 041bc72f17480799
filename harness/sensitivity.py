"""How small a fault the lab still sees, measured: one number of one rank is moved ever less."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from harness.arms import Arm
from harness.ranks import Ranks
from harness.runner import RunOptions, run_case
from matrix.case import Case

_MOST_HALVINGS = 30
PERTURBED = "harness.arms.perturbed:install"
QUANTITIES = ("buffer", "parameter", "gradient", "output", "replayed value")
"""What is moved; see `harness.arms.perturbed.QUANTITIES`."""


class Smallest(NamedTuple):
    """The smallest fault that is seen in a quantity."""

    quantity: str
    """What is moved."""
    part: float
    """Part of the value: this fault and each larger one is seen. Infinite where none is."""


def is_seen(case: Case, pool: Ranks, quantity: str, part: float, seed: int = 0) -> bool:
    """Tell whether the lab sees that one number of one rank is moved.

    Args:
        case: The case in which it is.
        pool: The ranks.
        quantity: One of `QUANTITIES`.
        part: By which part of itself it is moved.
        seed: Seed of the run.
    """
    arguments = {"what": quantity, "part": part}
    arm = Arm("perturbed", PERTURBED, "one number is moved", arguments=arguments)
    options = RunOptions(arm=arm, seed=seed, localized=False)
    return run_case(case, pool, options).outcome == "differs"


def smallest_seen(seen: Callable[[float], bool]) -> float:
    """Halve a fault until it is no longer seen.

    Args:
        seen: Whether a fault of a given part is seen.

    Returns:
        The smallest power of two such that it and all larger ones up to a half are seen.
    """
    part = float("inf")
    for halvings in range(1, _MOST_HALVINGS + 1):
        if not seen(2.0**-halvings):
            break
        part = 2.0**-halvings
    return part


def measure(case: Case, pool: Ranks, seed: int = 0) -> list[Smallest]:
    """Measure the smallest fault that is seen in each quantity of a case.

    Args:
        case: The case.
        pool: The ranks.
        seed: Seed of the run.
    """
    found = []
    for quantity in QUANTITIES:
        seen = partial(is_seen, case, pool, quantity, seed=seed)
        found.append(Smallest(quantity, smallest_seen(seen)))
    return found


def table(measured: Mapping[str, Sequence[Smallest]]) -> str:
    """Return what was measured as text: quantities down, cases across.

    Args:
        measured: Case id -> the smallest fault in each quantity.
    """
    rows = [["smallest part that is seen", *measured]]
    for number, quantity in enumerate(QUANTITIES):
        parts = [smallest[number].part for smallest in measured.values()]
        rows.append([quantity, *("none" if math.isinf(p) else f"{p:.1e}" for p in parts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
