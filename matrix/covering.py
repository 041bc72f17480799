"""Covering arrays under constraints, and how much an array covers.

A covering array of strength *t* holds every combination of values of every *t* factors at least
once, as far as constraints allow. The array comes from the ``covertable`` library; the coverage
figure is counted here from the finished rows, not taken from the library.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import covertable  # type: ignore[import-untyped]  # it has no stubs

from matrix.constraints import CONSTRAINTS, Constraint, exclusion
from matrix.values import Value, meets

Factors = Mapping[str, tuple[Value, ...]]
"""Factor name -> the values it may take."""

_SEVERAL = "each exclusion alone allows it, but together they leave no case with it"


@dataclass(frozen=True)
class Coverage:
    """How many value tuples an array covers."""

    full: tuple[str, ...]
    """Factors that every tuple spans."""
    strength: int
    """How many of the other factors a tuple spans besides."""
    covered: int
    """Possible tuples that some row holds."""
    possible: int
    """Tuples that some allowed row could hold."""
    ruled_out: Mapping[str, int]
    """Reason -> number of tuples that no allowed row can hold."""

    @property
    def name(self) -> str:
        """What is counted, for example ``2-way`` or ``subject x wrapper x 1-way of the rest``."""
        if not self.full:
            return f"{self.strength}-way"
        rest = (f"{self.strength}-way of the rest",) if self.strength else ()
        return " x ".join((*self.full, *rest))

    @property
    def text(self) -> str:
        """The figure in one sentence per line."""
        lines = [f"{self.name}: {self.covered} of {self.possible} possible tuples covered"]
        lines += [f"ruled out: {count} ({reason})" for reason, count in self.ruled_out.items()]
        return "\n".join(lines)


def covering_rows(
    factors: Factors,
    strength: int | None,
    *,
    full: tuple[str, ...] = (),
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
    seed: int = 0,
) -> list[dict[str, Value]]:
    """Return rows that cover all possible tuples.

    Args:
        factors: The factors.
        strength: How many factors a tuple spans; None, or as many as there are factors, for the
            full product.
        full: Factors whose full product is taken. Within each of its combinations the rows cover
            all tuples of ``strength`` other factors, in an array of its own.
        constraints: What is left out.
        seed: Varies the choice among equally good arrays.

    Returns:
        One dict per row, factor name -> value. The same arguments give the same rows.
    """
    rows: list[dict[str, Value]] = []
    for number, values in enumerate(itertools.product(*(factors[name] for name in full))):
        fixed = dict(zip(full, values, strict=True))
        if exclusion(fixed, constraints) is None:
            rest = {name: options for name, options in factors.items() if name not in fixed}
            rows += _array(
                fixed, rest, strength, constraints, f"{seed}" + f".{number}" * bool(full)
            )
    return rows


def coverage(
    rows: list[dict[str, Value]],
    factors: Factors,
    strength: int | None,
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
    full: tuple[str, ...] = (),
) -> Coverage:
    """Count what rows cover.

    Args:
        rows: As returned by :func:`covering_rows`.
        factors: The factors of the rows.
        strength: How many factors outside ``full`` a tuple spans; None for all.
        constraints: What is left out.
        full: Factors that every tuple spans.

    Returns:
        The figure.
    """
    rest = [name for name in factors if name not in full]
    size = len(rest) if strength is None else min(strength, len(rest))
    covered = possible = 0
    ruled_out: Counter[str] = Counter()
    impossible = _Impossible(factors, constraints)
    for chosen in itertools.combinations(rest, size):
        names = (*full, *chosen)
        held = {tuple(row[name] for name in names) for row in rows}
        for values in itertools.product(*(factors[name] for name in names)):
            reason = impossible.reason(dict(zip(names, values, strict=True)))
            if reason is not None:
                ruled_out[reason] += 1
                continue
            possible += 1
            covered += values in held
    return Coverage(full, size, covered, possible, dict(ruled_out))


def _array(
    fixed: Mapping[str, Value],
    rest: Factors,
    strength: int | None,
    constraints: tuple[Constraint, ...],
    salt: str,
) -> list[dict[str, Value]]:
    remaining = tuple(_remaining(constraints, fixed, rest))
    if strength is None or strength >= len(rest):
        rows = list(_full_product(rest, remaining))
    else:
        indexed = {name: list(range(len(values))) for name, values in rest.items()}
        made = covertable.make(
            indexed,
            strength=strength,
            salt=salt,
            constraints=[_condition(rule, rest) for rule in remaining],
        )
        rows = [{name: values[row[name]] for name, values in rest.items()} for row in made]
    return [{**fixed, **row} for row in rows]


def _remaining(
    constraints: tuple[Constraint, ...], fixed: Mapping[str, Value], rest: Factors
) -> Iterator[Constraint]:
    """Yield what constraints still say about ``rest`` once ``fixed`` is decided."""
    for rule in constraints:
        decided = {name: values for name, values in rule.when.items() if name in fixed}
        open_ = {name: values for name, values in rule.when.items() if name not in fixed}
        if meets(fixed, decided) and set(open_) <= set(rest):
            yield replace(rule, when=open_)


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


class _Impossible:
    """Tells why no allowed row can hold some values; remembers what it has found out."""

    def __init__(self, factors: Factors, constraints: tuple[Constraint, ...]) -> None:
        self._factors = factors
        self._constraints = constraints
        self._constrained = {name for rule in constraints for name in rule.when}
        self._known: dict[frozenset[tuple[str, Value]], str | None] = {}

    def reason(self, chosen: Mapping[str, Value]) -> str | None:
        relevant = {name: value for name, value in chosen.items() if name in self._constrained}
        key = frozenset(relevant.items())
        if key not in self._known:
            self._known[key] = self._find(relevant)
        return self._known[key]

    def _find(self, chosen: Mapping[str, Value]) -> str | None:
        for rule in self._constraints:
            if all(set(self._options(n, chosen)) <= set(rule.when[n]) for n in rule.when):
                return f"{rule.text}: {rule.reason}"
        free = [n for n in self._factors if n in self._constrained and n not in chosen]
        for values in itertools.product(*(self._factors[name] for name in free)):
            completed = {**chosen, **dict(zip(free, values, strict=True))}
            if exclusion(completed, self._constraints) is None:
                return None
        return _SEVERAL

    def _options(self, name: str, chosen: Mapping[str, Value]) -> tuple[Value, ...]:
        return (chosen[name],) if name in chosen else self._factors[name]
