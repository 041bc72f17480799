"""Suites; what they cover is counted here a second time, from their cases alone."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from filelock import FileLock

from matrix.axes import AXES
from matrix.case import Case
from matrix.constraints import constraints_on, exclusion
from matrix.subjects import SUBJECTS, Subject, subject_named
from matrix.suites import CARD, CORE, SUITES, Plan, Selection, Suite, Thinning, select, suite_named
from matrix.values import Condition, Value

NAMES = ("subject", *(axis.name for axis in AXES))
RULES = constraints_on(SUBJECTS)
BLOCKS = [subject for subject in SUBJECTS if subject.kind == "block"]
MODELS = [subject for subject in SUBJECTS if subject.kind == "model"]
Grid = npt.NDArray[np.bool_]
"""One flag for each combination of values of a group of factors."""
Whole = Callable[[str], Selection]
DEFAULTS: dict[str, Value] = {axis.name: axis.default for axis in AXES}
NOT_LEFT_AT_DEFAULT = (
    *("sync_bn", "running_stats", "autocast", "device", "subject", "wrapper", "fsdp_units"),
)
"""The subject, and the axes whose default stands in some rule."""


def values_of(name: str, subjects: Sequence[Subject]) -> tuple[Value, ...]:
    if name == "subject":
        return tuple(subject.name for subject in subjects)
    (axis,) = [axis for axis in AXES if axis.name == name]
    return (axis.default,) if axis.opt_in or axis.apart else axis.values


def possible(
    subjects: Sequence[Subject],
    strength: int,
    full: Sequence[str] = (),
    among: Sequence[str] = NAMES,
    only: Condition | None = None,
) -> list[Grid]:
    """Return the tuples that some allowed cell holds: for each group, one flag per tuple."""
    values = {name: (only or {}).get(name, values_of(name, subjects)) for name in NAMES}
    return [possible_in(group, values) for group in groups_of(strength, full, among)]


def possible_in(group: Sequence[str], values: Condition) -> Grid:
    """Try everything that a rule could need, with defaults for the rest: no rule is about those."""
    needed = {
        name for rule in RULES if not rule.when.keys().isdisjoint(group) for name in rule.when
    }
    rest = (name for name in NOT_LEFT_AT_DEFAULT if name in needed and name not in group)
    names = (*group, *rest)
    allowed = np.ones([len(values[name]) for name in names], dtype=bool)
    for rule in RULES:
        if set(rule.when) <= set(names):
            met = [
                [name not in rule.when or value in rule.when[name] for value in values[name]]
                for name in names
            ]
            allowed[np.ix_(*met)] = False
    return np.asarray(allowed.any(axis=tuple(range(len(group), len(names)))))


def test_only_those_axes_have_a_default_that_a_rule_is_about() -> None:
    named = {n for rule in RULES for n in DEFAULTS if DEFAULTS[n] in rule.when.get(n, ())}

    assert {"subject", *named} == set(NOT_LEFT_AT_DEFAULT)


def groups_of(
    strength: int, full: Sequence[str], among: Sequence[str] = NAMES
) -> list[tuple[str, ...]]:
    rest = [name for name in among if name not in full]
    return [(*full, *names) for names in itertools.combinations(rest, strength)]


def cells_of(cases: Sequence[Case]) -> list[dict[str, Value]]:
    return [{"subject": case.subject.name, **case.assignment} for case in cases]


def held(
    cells: Sequence[dict[str, Value]],
    subjects: Sequence[Subject],
    strength: int,
    full: Sequence[str] = (),
    among: Sequence[str] = NAMES,
    only: Condition | None = None,
) -> list[Grid]:
    """Return the tuples that some of the cells holds, in the form of ``possible``."""
    values = {name: (only or {}).get(name, values_of(name, subjects)) for name in NAMES}
    places = {name: [values[name].index(cell[name]) for cell in cells] for name in NAMES}
    grids = []
    for group in groups_of(strength, full, among):
        grid = np.zeros([len(values[name]) for name in group], dtype=bool)
        grid[tuple(places[name] for name in group)] = True
        grids.append(grid)
    return grids


def same(got: list[Grid], want: list[Grid]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(got, want, strict=True))


def total(grids: list[Grid]) -> int:
    return sum(int(grid.sum()) for grid in grids)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Whole:
    """Return the selection of a suite by its name; the workers of a test run share one of each."""
    folder = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        folder = folder.parent

    @functools.cache
    def selection(name: str) -> Selection:
        file = folder / f"{name}.pickle"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                file.write_bytes(pickle.dumps(select(suite_named(name))))
        shared: Selection = pickle.loads(file.read_bytes())
        return shared

    return selection


def not_compiled(cases: Sequence[Case], kind: str | None = None) -> list[dict[str, Value]]:
    """Return the cells of the plans that leave ``compile`` at its default."""
    return cells_of(
        [
            case
            for case in cases
            if case.assignment["compile"] == "off" and kind in (None, case.subject.kind)
        ]
    )


def test_smoke_holds_every_possible_pair(whole: Whole) -> None:
    selection = whole("smoke")
    pairs, compiled = selection.coverages

    want = possible(SUBJECTS, 2)
    assert same(held(not_compiled(selection.cases), SUBJECTS, 2), want)
    assert pairs.covered == pairs.possible == total(want)
    assert compiled.covered == compiled.possible == 3


def test_pr_holds_every_possible_triple_of_the_core_and_every_pair(
    whole: Whole,
) -> None:
    selection = whole("pr")
    pairs, triples, _ = selection.coverages
    cells = not_compiled(selection.cases)

    want = possible(SUBJECTS, 2)
    assert same(held(cells, SUBJECTS, 2), want)
    assert pairs.covered == pairs.possible == total(want)
    want = possible(SUBJECTS, 3, among=CORE)
    assert same(held(cells, SUBJECTS, 3, among=CORE), want)
    assert triples.covered == triples.possible == total(want)


def test_nightly_is_the_full_product_of_the_card_times_pairs_on_blocks_and_triples_on_models(
    whole: Whole,
) -> None:
    selection = whole("nightly")
    card_figure, _, pairs, triples, *_ = selection.coverages
    assert len(selection.cases) <= 10_000

    cells = not_compiled(selection.cases, "block")
    full = ("subject", *CARD)
    only: Condition = {"wrapper": ("none", "ddp")}
    want = possible(BLOCKS, 2, full, only=only)
    unsharded = [cell for cell in cells if cell["wrapper"] != "fsdp2"]
    assert same(held(unsharded, BLOCKS, 2, full, only=only), want)
    assert card_figure.covered == card_figure.possible == total(want)

    models = not_compiled(selection.cases, "model")
    want = possible(MODELS, 2)
    assert same(held(models, MODELS, 2), want)
    assert pairs.covered == pairs.possible == total(want)
    want = possible(MODELS, 3, among=CORE)
    assert same(held(models, MODELS, 3, among=CORE), want)
    assert triples.covered == triples.possible == total(want)


@pytest.mark.parametrize("name", ["smoke", "pr", "nightly"])
def test_compiled_cases_are_few(name: str, whole: Whole) -> None:
    compiled = [case.assignment["compile"] for case in whole(name).cases]

    assert 0 < compiled.count("aot_eager") <= 40
    assert compiled.count("inductor") <= (10 if name == "nightly" else 0)


def test_card_is_the_full_product_of_its_axes_on_the_minkunet_blocks() -> None:
    selection = select(suite_named("card"))
    (figure,) = selection.coverages

    # momentum x statistics x (no wrapper, DDP with and without broadcast) x autocast x backward
    # x accumulation x subjects
    assert len(selection.cases) == 3 * 2 * 3 * 2 * 4 * 5 * 4
    assert figure.covered == figure.possible == len(selection.cases)
    assert {case.assignment["steps"] for case in selection.cases} == {1}


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_no_suite_holds_an_excluded_case_or_one_twice(suite: Suite, whole: Whole) -> None:
    cases = whole(suite.name).cases

    assert all(exclusion(case.cell, RULES) is None for case in cases)
    assert len({case.id for case in cases}) == len(cases) <= suite.most


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_the_seed_decides_the_array(suite: Suite) -> None:
    def ids(seed: int) -> list[str]:
        return [case.id for case in select(suite, subjects=BLOCKS[:2], seed=seed).cases]

    third = ids(3)
    assert third == ids(3)
    assert (third == ids(4)) == (suite.name == "card")


def test_a_suite_that_would_be_too_long_is_thinned_step_by_step_and_says_so() -> None:
    nightly = suite_named("nightly")
    few = [subject_named(name) for name in ("basic", "dropout", "minkunet")]
    only = only_varied("bn_momentum", "wrapper", "autocast", "backward", "accumulation", "steps")

    def chosen(most: int) -> Selection:
        return select(replace(nightly, most=most), subjects=few, only=only)

    unthinned = chosen(10_000)
    assert "thinned: nothing" in unthinned.coverage_text
    sizes = [len(unthinned.cases)]
    for step in nightly.thinnings:
        selection = chosen(sizes[-1] - 1)
        assert selection.thinned == step.note
        assert f"thinned: {step.note}" in selection.coverage_text
        sizes.append(len(selection.cases))
    assert sizes == sorted(sizes, reverse=True)

    with pytest.raises(ValueError, match="'nightly' would have .* cases, more than 10; narrow"):
        chosen(10)


def only_varied(*names: str) -> Condition:
    """Return every other axis at its default: suites of such are made in no time."""
    return {axis.name: (axis.default,) for axis in AXES if axis.name not in names}


def test_models_are_thinned_first() -> None:
    both = Suite(
        "both",
        (Plan(2, kinds=("block",)), Plan(3, kinds=("model",))),
        "for this test",
        thinnings=(Thinning((Plan(2, kinds=("block",)), Plan(2, kinds=("model",))), "models"),),
    )
    few = (*BLOCKS[:3], *MODELS[:3])
    only = only_varied("bn_momentum", "autocast", "backward", "accumulation", "steps")
    all_of_it = select(both, subjects=few, only=only)

    thin = select(replace(both, most=len(all_of_it.cases) - 1), subjects=few, only=only)

    def blocks(cases: Sequence[Case]) -> list[str]:
        return [case.id for case in cases if case.subject.kind == "block"]

    assert blocks(thin.cases) == blocks(all_of_it.cases)
    assert len(thin.cases) < len(all_of_it.cases)


def test_an_axis_that_is_opted_in_is_run_where_it_is_asked_for() -> None:
    smoke = suite_named("smoke")

    assert {case.assignment["device"] for case in select(smoke).cases} == {"cpu"}
    cuda = select(smoke, only={"device": ("cuda",)}).cases
    assert {case.assignment["device"] for case in cuda} == {"cuda"}
    assert "fp16" in {case.assignment["autocast"] for case in cuda}


def test_a_narrowed_axis_keeps_its_ids() -> None:
    selection = select(suite_named("card"), subjects=SUBJECTS[:1], only={"wrapper": ("ddp",)})

    assert all(",wrapper=ddp" in case.id for case in selection.cases)
    assert len(selection.cases) == 3 * 2 * 2 * 2 * 4 * 5


def test_narrowing_to_nothing_says_why() -> None:
    only: dict[str, tuple[Value, ...]] = {"wrapper": ("none",), "broadcast_buffers": (False,)}

    with pytest.raises(ValueError, match="leave no case.*buffer broadcast is an option of DDP"):
        select(suite_named("smoke"), only=only)
    with pytest.raises(ValueError, match="suite 'card' has none of .'minkunet'"):
        select(suite_named("card"), subjects=MODELS)


def test_an_unknown_suite_or_axis_is_named() -> None:
    with pytest.raises(ValueError, match="no suite 'all'; valid suites: smoke, pr, card, nightly"):
        suite_named("all")
    with pytest.raises(ValueError, match="no axis 'momentum'"):
        select(suite_named("smoke"), only={"momentum": (0.1,)})
