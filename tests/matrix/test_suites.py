from __future__ import annotations

import itertools

import pytest

from matrix.axes import AXES
from matrix.constraints import exclusion
from matrix.subjects import SUBJECTS
from matrix.suites import SUITES, Suite, select, suite_named
from matrix.values import Value


def test_smoke_holds_every_pair_of_values_that_is_possible() -> None:
    cells = [case.cell for case in select(suite_named("smoke")).cases]
    names = ["subject", *(axis.name for axis in AXES)]
    factors = [[subject.name for subject in SUBJECTS], *(axis.values for axis in AXES)]
    product = [
        cell
        for values in itertools.product(*factors)
        if exclusion(cell := dict(zip(names, values, strict=True))) is None
    ]

    for first, second in itertools.combinations(names, 2):
        held = {(cell[first], cell[second]) for cell in cells}
        assert held == {(cell[first], cell[second]) for cell in product}


def test_card_is_the_full_product() -> None:
    selection = select(suite_named("card"))

    # momentum x statistics x (no wrapper, DDP with and without broadcast) x autocast x backward
    # x accumulation x subjects
    assert len(selection.cases) == 3 * 2 * 3 * 2 * 3 * 4 * 4
    assert len({case.id for case in selection.cases}) == len(selection.cases)
    assert selection.coverage.covered == selection.coverage.possible == 1728
    assert sum(selection.coverage.ruled_out.values()) == 576


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_no_suite_holds_an_excluded_case(suite: Suite) -> None:
    assert all(exclusion(case.cell) is None for case in select(suite).cases)


def test_a_narrowed_axis_keeps_its_ids() -> None:
    selection = select(suite_named("card"), subjects=SUBJECTS[:1], only={"wrapper": ("ddp",)})

    assert all(",wrapper=ddp" in case.id for case in selection.cases)
    assert len(selection.cases) == 3 * 2 * 2 * 2 * 3 * 4


def test_narrowing_to_nothing_says_why() -> None:
    only: dict[str, tuple[Value, ...]] = {"wrapper": ("none",), "broadcast_buffers": (False,)}

    with pytest.raises(ValueError, match="leave no case.*buffer broadcast is an option of DDP"):
        select(suite_named("smoke"), only=only)


def test_an_unknown_suite_or_axis_is_named() -> None:
    with pytest.raises(ValueError, match="no suite 'all'; valid suites: smoke, card"):
        suite_named("all")
    with pytest.raises(ValueError, match="no axis 'momentum'"):
        select(suite_named("smoke"), only={"momentum": (0.1,)})
