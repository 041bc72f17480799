from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.history import warm_up
from harness.prediction import prediction_text, simulate
from harness.row import Row


def test_one_machine_takes_start_up_and_all_cases() -> None:
    found = simulate([3.0, 1.0, 2.0], shards=1, groups=1, startup=5.0)

    assert (found.wall, found.cases, found.shards) == (11.0, 6.0, (11.0,))


def test_groups_take_the_next_case_as_they_become_free() -> None:
    found = simulate([4.0, 1.0, 1.0, 2.0], shards=1, groups=2, startup=0.0)

    assert found.wall == 4.0


def test_shards_run_at_once() -> None:
    found = simulate([4.0, 1.0, 1.0, 2.0], shards=2, groups=1, startup=1.0)

    assert found.shards == (5.0, 5.0)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    seconds=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=40),
    shards=st.integers(1, 8),
    groups=st.integers(1, 4),
)
def test_no_machine_does_more_than_it_can(seconds: list[float], shards: int, groups: int) -> None:
    found = simulate(seconds, shards=shards, groups=groups, startup=0.0)

    assert found.wall >= max(max(seconds), sum(seconds) / (shards * groups)) - 1e-9
    assert found.wall <= sum(seconds) + 1e-9


def test_the_start_of_the_ranks_is_taken_out_of_the_first_case() -> None:
    rows = [
        Row(
            case=f"readme,steps={number}",
            subject="readme",
            axes={},
            seed=0,
            arm="checkpointed",
            ranks=2,
            outcome="equal",
            seconds=seconds,
        )
        for number, seconds in enumerate([4.5, 0.4, 0.5, 0.6])
    ]

    assert warm_up(rows) == (4.0, [0.5, 0.4, 0.5, 0.6])


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no results folder"):
        prediction_text(tmp_path, ranks=2, shards=1, startup=0.0)
