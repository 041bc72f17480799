"""Covering arrays under constraints, and how much an array covers.

A covering array of strength *t* holds every combination of values of every *t* factors at least
once, as far as constraints allow. The array comes from the ``covertable`` library; the coverage
figure is counted here from the finished rows, not taken from the library.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import covertable  # type: ignore[import-untyped]  # it has no stubs

from matrix.completion import Factors, Row, completed
from matrix.constraints import CONSTRAINTS, Constraint, exclusion
from matrix.growth import grown
from matrix.values import Value, meets

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
    among: tuple[str, ...] = ()
    """The only factors that tuples span besides ``full``; empty for all."""

    @property
    def name(self) -> str:
        """What is counted, for example ``2-way`` or ``subject x wrapper x 1-way of the rest``."""
        if self.among:
            return f"{self.strength}-way of {', '.join(self.among)}"
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
    core: tuple[str, ...] = (),
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
        core: The factors that ``strength`` is of; of all others every pair is covered, with each
            other and with these. Empty for all factors.
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
            salt = f"{seed}" + f".{number}" * bool(full)
            rows += _array(fixed, rest, strength, core, constraints, salt)
    return rows


def coverage(
    rows: list[dict[str, Value]],
    factors: Factors,
    strength: int | None,
    constraints: tuple[Constraint, ...] = CONSTRAINTS,
    full: tuple[str, ...] = (),
    among: tuple[str, ...] = (),
) -> Coverage:
    """Count what rows cover.

    Args:
        rows: As returned by :func:`covering_rows`.
        factors: The factors of the rows.
        strength: How many factors outside ``full`` a tuple spans; None for all.
        constraints: What is left out.
        full: Factors that every tuple spans.
        among: The only other factors that tuples span; empty for all.

    Returns:
        The figure.
    """
    rest = [name for name in factors if name not in full and (name in among or not among)]
    size = len(rest) if strength is None else min(strength, len(rest))
    covered = possible = 0
    ruled_out: Counter[str] = Counter()
    impossible = _Impossible(factors, constraints)
    groups = list(itertools.combinations(rest, size))
    held = {
        group: {tuple(row[name] for name in (*full, *group)) for row in rows} for group in groups
    }
    tuples = sum(math.prod(len(factors[name]) for name in group) for group in groups)
    for spanned in itertools.product(*(factors[name] for name in full)):
        fixed = dict(zip(full, spanned, strict=True))
        reason = impossible.reason(fixed)
        if reason is not None:
            ruled_out[reason] += tuples
            continue
        for group in groups:
            for values in itertools.product(*(factors[name] for name in group)):
                reason = impossible.reason({**fixed, **dict(zip(group, values, strict=True))})
                if reason is not None:
                    ruled_out[reason] += 1
                    continue
                possible += 1
                covered += (*spanned, *values) in held[group]
    return Coverage(full, size, covered, possible, dict(ruled_out), among)


def _array(
    fixed: Mapping[str, Value],
    rest: Factors,
    strength: int | None,
    core: tuple[str, ...],
    constraints: tuple[Constraint, ...],
    salt: str,
) -> list[dict[str, Value]]:
    remaining = tuple(_remaining(constraints, fixed, rest))
    first = {name: values for name, values in rest.items() if name in core or not core}
    among_first = tuple(rule for rule in remaining if set(rule.when) <= set(first))
    rows: list[Row]
    if strength is None or strength >= len(first):
        rows = list(_full_product(first, among_first))
    else:
        indexed = {name: list(range(len(values))) for name, values in first.items()}
        made = covertable.make(
            indexed,
            strength=strength,
            salt=salt,
            constraints=[_condition(rule, first) for rule in among_first],
        )
        rows = [{name: values[row[name]] for name, values in first.items()} for row in made]
    others = [name for name in rest if name not in first]
    return [{**fixed, **row} for row in grown(rows, others, rest, remaining)]


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
        named = {name for rule in constraints for name in rule.when}
        self._constrained = {name: factors[name] for name in factors if name in named}
        self._known: dict[frozenset[tuple[str, Value]], str | None] = {}

    def reason(self, chosen: Mapping[str, Value]) -> str | None:
        relevant = {name: value for name, value in chosen.items() if name in self._constrained}
        key = frozenset(relevant.items())
        if key not in self._known:
            self._known[key] = self._find(relevant)
        return self._known[key]

    def _find(self, chosen: Mapping[str, Value]) -> str | None:
        if completed(chosen, self._constrained, self._constraints) is not None:
            return None
        for rule in self._constraints:
            if all(set(self._options(n, chosen)) <= set(rule.when[n]) for n in rule.when):
                return f"{rule.text}: {rule.reason}"
        return _SEVERAL

    def _options(self, name: str, chosen: Mapping[str, Value]) -> tuple[Value, ...]:
        return (chosen[name],) if name in chosen else self._factors[name]
