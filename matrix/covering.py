"""Covering arrays under constraints, and how much an array covers.

A covering array of strength *t* holds every combination of values of every *t* factors at least
once, as far as constraints allow. The array comes from the ``covertable`` library; the coverage
figure is counted here from the finished rows, not taken from the library.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import covertable  # type: ignore[import-untyped]  # it has no stubs

from matrix.constraints import CONSTRAINTS, Constraint, exclusion
from matrix.values import Value, meets

Factors = Mapping[str, tuple[Value, ...]]
"""Factor name -> the values it may take."""

_SEVERAL = "no single exclusion, but several together"


@dataclass(frozen=True)
class Coverage:
    """How many value tuples an array covers."""

    strength: int
    """How many factors a tuple spans."""
    covered: int
    """Possible tuples that some row holds."""
    possible: int
    """Tuples that some allowed row could hold."""
    ruled_out: Mapping[str, int]
    """Reason -> number of tuples that no allowed row can hold."""

    @property
    def text(self) -> str:
        """The figure in one sentence per line."""
        lines = [f"{self.strength}-way: {self.covered} of {self.possible} possible tuples covered"]
        lines += [f"ruled out: {count} ({reason})" for reason, count in self.ruled_out.items()]
        return "\n".join(lines)


def covering_rows(
    factors: Factors,
    strength: int | None,
    *,
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
    seed: int = 0,
) -> list[dict[str, Value]]:
    """Return rows that cover all possible tuples.

    Args:
        factors: The factors.
        strength: How many factors a tuple spans; None, or as many as there are factors, for the
            full product.
        constraints: What is left out.
        seed: Varies the choice among equally good arrays.

    Returns:
        One dict per row, factor name -> value. The same arguments give the same rows.
    """
    if strength is None or strength >= len(factors):
        return list(_full_product(factors, constraints))
    indexed = {name: list(range(len(values))) for name, values in factors.items()}
    rows = covertable.make(
        indexed,
        strength=strength,
        salt=str(seed),
        constraints=[
            _condition(rule, factors) for rule in constraints if set(rule.when) <= set(factors)
        ],
    )
    return [{name: values[row[name]] for name, values in factors.items()} for row in rows]


def coverage(
    rows: list[dict[str, Value]],
    factors: Factors,
    strength: int | None,
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
) -> Coverage:
    """Count what rows cover.

    Args:
        rows: As returned by :func:`covering_rows`.
        factors: The factors of the rows.
        strength: How many factors a tuple spans; None for all.
        constraints: What is left out.

    Returns:
        The figure.
    """
    size = len(factors) if strength is None else min(strength, len(factors))
    held = {
        chosen
        for row in rows
        for chosen in itertools.combinations(((name, row[name]) for name in factors), size)
    }
    covered = possible = 0
    ruled_out: Counter[str] = Counter()
    for names in itertools.combinations(factors, size):
        for values in itertools.product(*(factors[name] for name in names)):
            reason = _impossible(dict(zip(names, values, strict=True)), factors, constraints)
            if reason is not None:
                ruled_out[reason] += 1
                continue
            possible += 1
            covered += tuple(zip(names, values, strict=True)) in held
    return Coverage(size, covered, possible, dict(ruled_out))


def _full_product(
    factors: Factors, constraints: tuple[Constraint, ...]
) -> Iterator[dict[str, Value]]:
    for values in itertools.product(*factors.values()):
        row = dict(zip(factors, values, strict=True))
        if exclusion(row, constraints) is None:
            yield row


def _condition(rule: Constraint, factors: Factors) -> dict[str, object]:
    def allowed(row: Mapping[str, int]) -> bool:
        return not meets({name: factors[name][row[name]] for name in rule.when}, rule.when)

    return {"operator": "fn", "requires": list(rule.when), "evaluate": allowed}


def _impossible(
    chosen: Mapping[str, Value], factors: Factors, constraints: tuple[Constraint, ...]
) -> str | None:
    rule = exclusion(chosen, constraints)
    if rule is not None:
        return f"{rule.text}: {rule.reason}"
    constrained = {name for rule in constraints for name in rule.when}
    free = [name for name in factors if name in constrained and name not in chosen]
    completions = itertools.product(*(factors[name] for name in free))
    for values in completions:
        if exclusion({**chosen, **dict(zip(free, values, strict=True))}, constraints) is None:
            return None
    return _SEVERAL
