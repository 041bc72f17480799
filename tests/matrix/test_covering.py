"""Coverage figures are counted here a second time, in another way than the package does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.constraints import Constraint, exclusion
from matrix.covering import Factors, coverage, covering_rows
from matrix.values import Value

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def tuples_of(rows: list[dict[str, Value]], strength: int) -> set[frozenset[tuple[str, Value]]]:
    return {
        frozenset(chosen)
        for row in rows
        for chosen in itertools.combinations(row.items(), strength)
    }


def allowed_product(
    factors: Factors, constraints: tuple[Constraint, ...]
) -> list[dict[str, Value]]:
    names = list(factors)
    rows = [
        dict(zip(names, values, strict=True)) for values in itertools.product(*factors.values())
    ]
    return [row for row in rows if exclusion(row, constraints) is None]


@st.composite
def models(draw: st.DrawFn) -> tuple[Factors, tuple[Constraint, ...], int]:
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    factors: Mapping[str, tuple[Value, ...]] = {
        f"f{number}": tuple(range(size)) for number, size in enumerate(sizes)
    }
    constraints = []
    for _ in range(draw(st.integers(0, 3))):
        names = draw(st.lists(st.sampled_from(list(factors)), min_size=2, max_size=2, unique=True))
        when = {name: (draw(st.sampled_from(factors[name])),) for name in names}
        constraints.append(Constraint(when, "inapplicable", "drawn"))
    return factors, tuple(constraints), draw(st.integers(1, 3))


@SETTINGS
@given(models())
def test_rows_are_allowed_and_cover_every_possible_tuple(
    model: tuple[Factors, tuple[Constraint, ...], int],
) -> None:
    factors, constraints, strength = model
    strength = min(strength, len(factors))
    possible = tuples_of(allowed_product(factors, constraints), strength)

    rows = covering_rows(factors, strength, constraints=constraints)

    assert all(exclusion(row, constraints) is None for row in rows)
    assert tuples_of(rows, strength) == possible


@SETTINGS
@given(models(), st.integers(1, 4))
def test_pairs_are_covered_however_many_factors_the_core_has(
    model: tuple[Factors, tuple[Constraint, ...], int], size: int
) -> None:
    factors, constraints, _ = model
    core = tuple(factors)[:size]
    possible = tuples_of(allowed_product(factors, constraints), 2)

    rows = covering_rows(factors, 2, core=core, constraints=constraints)

    assert all(exclusion(row, constraints) is None for row in rows)
    assert tuples_of(rows, 2) == possible


def test_a_value_that_leaves_a_later_factor_none_is_chosen_anew() -> None:
    factors: Factors = {"a": (0, 1), "b": (0, 1), "c": (0, 1), "d": (0, 1)}
    constraints = (
        Constraint({"a": (0,), "c": (1,), "d": (0,)}, "inapplicable", "drawn"),
        Constraint({"a": (0,), "d": (1,)}, "inapplicable", "drawn"),
    )

    rows = covering_rows(factors, 2, core=("a", "b"), constraints=constraints)

    assert tuples_of(rows, 2) == tuples_of(allowed_product(factors, constraints), 2)
    assert all(exclusion(row, constraints) is None for row in rows)


@SETTINGS
@given(models())
def test_the_figure_agrees_with_an_independent_count(
    model: tuple[Factors, tuple[Constraint, ...], int],
) -> None:
    factors, constraints, strength = model
    strength = min(strength, len(factors))
    allowed = allowed_product(factors, constraints)
    some = allowed[::3]

    figure = coverage(some, factors, strength, constraints)

    every = [dict(zip(factors, v, strict=True)) for v in itertools.product(*factors.values())]
    assert figure.covered == len(tuples_of(some, strength))
    assert figure.possible == len(tuples_of(allowed, strength))
    assert figure.possible + sum(figure.ruled_out.values()) == len(tuples_of(every, strength))


def test_the_full_product_is_every_allowed_row() -> None:
    factors: Factors = {"a": (1, 2), "b": (1, 2, 3)}
    rule = Constraint({"a": (1,), "b": (3,)}, "inapplicable", "for this test")

    rows = covering_rows(factors, None, constraints=(rule,))

    assert rows == allowed_product(factors, (rule,))
    assert len(rows) == 5


def test_the_figure_names_each_reason() -> None:
    factors: Factors = {"a": (1, 2), "b": (1, 2, 3)}
    rule = Constraint({"a": (1,), "b": (2, 3)}, "inapplicable", "these two do not meet")

    figure = coverage([{"a": 2, "b": 1}], factors, 2, (rule,))

    assert (figure.covered, figure.possible) == (1, 4)
    assert figure.ruled_out == {"a=1,b=2|3: these two do not meet": 2}
    assert "1 of 4 possible tuples covered" in figure.text
    assert "these two do not meet" in figure.text


def test_a_tuple_that_only_several_exclusions_together_forbid_is_ruled_out() -> None:
    factors: Factors = {"a": (1, 2), "b": (1, 2), "c": (1, 2)}
    rules = (
        Constraint({"a": (1,), "c": (1,)}, "inapplicable", "first"),
        Constraint({"b": (1,), "c": (2,)}, "inapplicable", "second"),
    )

    figure = coverage(covering_rows(factors, 2, constraints=rules), factors, 2, rules)

    assert figure.covered == figure.possible == 12 - 3
    assert (
        figure.ruled_out["each exclusion alone allows it, but together they leave no case with it"]
        == 1
    )


@pytest.mark.parametrize("strength", [2, None])
def test_the_same_seed_gives_the_same_rows(strength: int | None) -> None:
    factors: Factors = {"a": (1, 2), "b": (1, 2, 3), "c": (None, True)}

    first = covering_rows(factors, strength, constraints=(), seed=3)

    assert first == covering_rows(factors, strength, constraints=(), seed=3)
