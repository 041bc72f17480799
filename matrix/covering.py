"""Covering arrays under constraints, and how much an array covers.

A covering array of strength *t* holds every combination of values of every *t* factors at least
once, as far as constraints allow. The array comes from the ``covertable`` library; the coverage
figure is counted here from the finished rows, not taken from the library.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TypeVar

import covertable  # type: ignore[import-untyped]  # it has no stubs

from matrix.completion import Factors, Row, completed
from matrix.constraints import CONSTRAINTS, Constraint, exclusion
from matrix.growth import grown
from matrix.values import Value, meets

_Name = TypeVar("_Name", str, int)
_Of = TypeVar("_Of")
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
    groups = list(itertools.combinations(rest, size))
    open_ = {name: values for name, values in factors.items() if name not in full}
    of_span = _values_of(full)
    held: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        held.setdefault(of_span(row), []).append(row)
    counted: dict[tuple[Constraint, ...], _Tuples] = {}
    covered = possible = 0
    ruled_out: Counter[str] = Counter()
    for span in itertools.product(*(factors[name] for name in full)):
        rules = tuple(_remaining(constraints, dict(zip(full, span, strict=True)), open_))
        if rules not in counted:
            counted[rules] = _Tuples(groups, open_, rules)
        tuples = counted[rules]
        covered += tuples.covered(held.get(span, ()))
        possible += tuples.possible
        for reason, count in tuples.ruled_out.items():
            ruled_out[reason] += count
    return Coverage(full, size, covered, possible, dict(ruled_out), among)


def _array(
    fixed: Mapping[str, Value],
    rest: Factors,
    strength: int | None,
    core: tuple[str, ...],
    constraints: tuple[Constraint, ...],
    salt: str,
) -> list[dict[str, Value]]:
    remaining = tuple(_opened(rule, rest) for rule in _remaining(constraints, fixed, rest))
    if completed({}, rest, remaining) is None:
        return []
    first = {name: values for name, values in rest.items() if name in core or not core}
    among_first = tuple(rule for rule in remaining if set(rule.when) <= set(first))
    rows: list[Row]
    if strength is None or strength >= len(first):
        rows = list(_full_product(first, among_first))
    else:
        # By number: the library splits a name at its dots each time it looks up a value.
        made = covertable.make(
            {number: list(range(len(values))) for number, values in enumerate(first.values())},
            strength=strength,
            salt=salt,
            constraints=_conditions(among_first, first),
        )
        rows = [
            {name: values[row[number]] for number, (name, values) in enumerate(first.items())}
            for row in made
        ]
    others = [name for name in rest if name not in first]
    return [{**fixed, **row} for row in grown(rows, others, rest, remaining)]


def _remaining(
    constraints: tuple[Constraint, ...], fixed: Mapping[str, Value], rest: Factors
) -> Iterator[Constraint]:
    """Yield the constraints that still say something about ``rest`` once ``fixed`` is decided."""
    for rule in constraints:
        decided = {name: values for name, values in rule.when.items() if name in fixed}
        if meets(fixed, decided) and all(name in fixed or name in rest for name in rule.when):
            yield rule


def _opened(rule: Constraint, rest: Factors) -> Constraint:
    """Return what a constraint says about ``rest`` once everything else is decided."""
    return replace(rule, when={name: rule.when[name] for name in rule.when if name in rest})


def _full_product(
    factors: Factors, constraints: tuple[Constraint, ...]
) -> Iterator[dict[str, Value]]:
    for values in itertools.product(*factors.values()):
        row = dict(zip(factors, values, strict=True))
        if exclusion(row, constraints) is None:
            yield row


def _conditions(constraints: tuple[Constraint, ...], factors: Factors) -> list[dict[str, object]]:
    """Return one condition, on numbers, for all constraints that name the same factors."""
    excluded: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    numbers = {name: number for number, name in enumerate(factors)}
    for rule in constraints:
        names = sorted(rule.when, key=numbers.__getitem__)
        combinations = itertools.product(
            *([i for i, value in enumerate(factors[n]) if value in rule.when[n]] for n in names)
        )
        excluded.setdefault(tuple(numbers[name] for name in names), set()).update(combinations)
    return [_condition(names, values) for names, values in excluded.items() if values]


def _condition(names: tuple[int, ...], excluded: set[tuple[int, ...]]) -> dict[str, object]:
    values_of = _values_of(names)

    def allowed(row: Mapping[int, int]) -> bool:
        return values_of(row) not in excluded

    return {"operator": "fn", "requires": names, "evaluate": allowed}


def _values_of(names: tuple[_Name, ...]) -> Callable[[Mapping[_Name, _Of]], tuple[_Of, ...]]:
    """Return a function that reads some values of a row: fast where there are several."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple(row[name] for name in names)


class _Tuples:
    """The values that rows can hold where the same constraints are left, and those they cannot."""

    def __init__(
        self, groups: list[tuple[str, ...]], factors: Factors, constraints: tuple[Constraint, ...]
    ) -> None:
        self._factors = factors
        self._opened = {rule: _opened(rule, factors) for rule in constraints}
        named = {name for rule in self._opened.values() for name in rule.when}
        self._constrained = {name: factors[name] for name in factors if name in named}
        self._reasons: dict[tuple[tuple[str, Value], ...], str | None] = {}
        self.ruled_out: Counter[str] = Counter()
        self._allowed = [(_values_of(group), set(self._tuples(group))) for group in groups]
        self.possible = sum(len(allowed) for _, allowed in self._allowed)

    def covered(self, rows: Sequence[Row]) -> int:
        """Count the possible tuples that some row holds."""
        return sum(len(allowed.intersection(map(of, rows))) for of, allowed in self._allowed)

    def _tuples(self, group: tuple[str, ...]) -> Iterator[tuple[Value, ...]]:
        """Yield the possible tuples, and count the others by reason."""
        always = self._reason(())
        named = [(place, name) for place, name in enumerate(group) if name in self._constrained]
        for values in itertools.product(*(self._factors[name] for name in group)):
            reason = always or self._reason(tuple((name, values[place]) for place, name in named))
            if reason is None:
                yield values
            else:
                self.ruled_out[reason] += 1

    def _reason(self, chosen: tuple[tuple[str, Value], ...]) -> str | None:
        """Tell why no allowed row can hold some values of constrained factors."""
        if chosen not in self._reasons:
            self._reasons[chosen] = self._find(dict(chosen))
        return self._reasons[chosen]

    def _find(self, chosen: Mapping[str, Value]) -> str | None:
        if completed(chosen, self._constrained, tuple(self._opened.values())) is not None:
            return None
        for rule, opened in self._opened.items():
            if all(set(self._options(n, chosen)) <= set(opened.when[n]) for n in opened.when):
                return f"{rule.text}: {rule.reason}"
        return _SEVERAL

    def _options(self, name: str, chosen: Mapping[str, Value]) -> tuple[Value, ...]:
        return (chosen[name],) if name in chosen else self._factors[name]
