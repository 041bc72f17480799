from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.history import recorded_seconds
from harness.shards import SeededCase, Shard, balance, cut
from harness.store import Store
from matrix.subjects import SUBJECTS
from matrix.suites import select, suite_named

SELECTIONS = {
    seed: select(suite_named("smoke"), subjects=SUBJECTS[:4], seed=seed) for seed in (0, 1)
}
ALL = [(case.id, seed) for seed, s in SELECTIONS.items() for case in s.cases]


def ids(cases: Sequence[SeededCase]) -> list[tuple[str, int]]:
    return [(case.id, seed) for case, seed in cases]


@settings(derandomize=True, deadline=None, max_examples=20)
@given(count=st.integers(1, 40))
def test_shards_are_disjoint_and_together_the_suite(count: int) -> None:
    whole = cut(SELECTIONS, count, None)

    shards = [ids(whole.of(Shard(number, count))) for number in range(1, count + 1)]

    assert sorted(place for shard in shards for place in shard) == sorted(ALL)
    assert all([place for place in ALL if place in set(shard)] == shard for shard in shards)
    assert cut(SELECTIONS, count, None) == whole


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    seconds=st.lists(st.floats(0.001, 100.0), min_size=1, max_size=60),
    count=st.integers(1, 12),
)
def test_no_shard_takes_longer_than_the_bound_of_the_greedy_spread(
    seconds: list[float], count: int
) -> None:
    places = balance(seconds, count)

    loads = [0.0] * count
    for place, duration in zip(places, seconds, strict=True):
        loads[place] += duration
    assert max(loads) <= sum(seconds) / count + max(seconds) * (1 - 1 / count) + 1e-6
    assert balance(seconds, count) == places


def test_shards_are_balanced_by_recorded_times(tmp_path: Path) -> None:
    cases = [case for case, seed in cut(SELECTIONS, 1, None).cases if seed == 0]
    slow = cases[5]  # not the first: there the start of the ranks is taken out
    lines = [
        {
            **{"schema": 1, "case": case.id, "subject": case.subject.name, "seed": 0},
            **{"axes": case.assignment, "arm": "checkpointed", "ranks": 2, "outcome": "equal"},
            **{"findings": [], "noise": None, "seconds": 1000.0 if case == slow else 0.01},
        }
        for case in cases
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    whole = cut({0: SELECTIONS[0]}, 3, tmp_path)

    assert recorded_seconds([slow], tmp_path) == [1000.0]
    (alone,) = [s for n in (1, 2, 3) if (slow, 0) in (s := whole.of(Shard(n, 3)))]
    assert ids(alone) == [(slow.id, 0)]
    assert whole.digest != cut({0: SELECTIONS[0]}, 3, None).digest


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "a/b", "1/0", "-1/4", "1/2/3"])
def test_a_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--shard"):
        Shard.parse(text)


def test_the_results_of_a_shard_carry_its_number(tmp_path: Path) -> None:
    shard = Shard.parse("3/8")

    with Store(tmp_path / "out", {"shard": shard.text}, tag=shard.tag):
        pass

    assert (tmp_path / "out" / "results.3-of-8.jsonl").exists()


def test_times_of_a_folder_without_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no results"):
        cut(SELECTIONS, 2, tmp_path)
