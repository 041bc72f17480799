"""The smallest fault that the lab sees; docs/lab.md states these figures."""

from __future__ import annotations

import pytest

from harness.ranks import RankPool
from harness.sensitivity import QUANTITIES, Smallest, is_seen, smallest_seen, table
from matrix.case import parse_case


@pytest.mark.parametrize("case", ["readme", "readme,wrapper=ddp", "basic"])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_one_part_in_ten_to_the_five_of_one_number_of_one_rank_is_seen(
    rank_pool: RankPool, quantity: str, case: str
) -> None:
    assert is_seen(parse_case(case), rank_pool, quantity, 1e-5)


@pytest.mark.parametrize(
    ("quantity", "halvings"),
    [
        # What is kept in float32 is seen down to its last bit, ...
        ("buffer", 23),
        ("parameter", 23),
        ("gradient", 23),
        # ... what is computed in bfloat16 down to the last of its own, and what the replay alone
        # sees is rounded once more on its way.
        ("output", 8),
        ("replayed value", 7),
    ],
)
def test_the_smallest_fault_that_is_seen_under_bf16_autocast(
    rank_pool: RankPool, quantity: str, halvings: int
) -> None:
    case = parse_case("basic,autocast=bf16")

    assert is_seen(case, rank_pool, quantity, 2.0**-halvings)
    assert not is_seen(case, rank_pool, quantity, 2.0 ** -(halvings + 2))


@pytest.mark.parametrize(
    ("limit", "smallest"), [(0.3, 0.5), (0.2, 0.25), (0.0, 2.0**-30), (1.0, float("inf"))]
)
def test_a_fault_is_halved_until_it_is_no_longer_seen(limit: float, smallest: float) -> None:
    assert smallest_seen(lambda part: part > limit) == smallest


def test_the_table_has_a_row_for_each_quantity() -> None:
    parts = [2.0**-23, 2.0**-23, 2.0**-23, 2.0**-8, float("inf")]
    found = [Smallest(quantity, part) for quantity, part in zip(QUANTITIES, parts, strict=True)]

    lines = table({"basic": found, "basic,autocast=bf16": found}).splitlines()

    assert lines[0].split()[5:] == ["basic", "basic,autocast=bf16"]
    assert lines[1].split() == ["buffer", "1.2e-07", "1.2e-07"]
    assert lines[4].split() == ["output", "3.9e-03", "3.9e-03"]
    assert lines[5].split() == ["replayed", "value", "none", "none"]


def test_a_fault_that_is_seen_by_chance_below_one_that_is_not_does_not_count() -> None:
    assert smallest_seen(lambda part: part != 0.125) == 0.25
