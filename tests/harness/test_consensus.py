from __future__ import annotations

from pathlib import Path

import pytest

from harness.arms import ORDINARY
from harness.findings import Finding
from harness.job import make_job
from harness.ranks import RankPool
from matrix.case import parse_case
from matrix.expectations import Fact
from matrix.programs import ACCUMULATIONS

TASKS = f"{Path(__file__).parent}/rank_tasks.py"
AGREE = [fact for fact in Fact if "agree" in fact.value]
DIFFER = [fact for fact in Fact if "differ" in fact.value]


def agreement(
    pool: RankPool, fact: Fact, *, same: bool, voter: int = -1
) -> list[tuple[list[Finding], bool]]:
    results = pool.run(f"{TASKS}:agreement", (fact.value, same, voter), 30.0)
    return [result.value for result in results]


@pytest.mark.parametrize("fact", AGREE)
def test_a_rank_with_other_values_is_found_where_ranks_must_agree(
    rank_pool: RankPool, fact: Fact
) -> None:
    assert agreement(rank_pool, fact, same=True) == [([], False), ([], False)]

    (rank_0, _), (rank_1, _) = agreement(rank_pool, fact, same=False)
    assert rank_0 == []
    (finding,) = rank_1
    assert finding.path.endswith("[2]")
    assert (finding.expected, finding.got, finding.max_abs) == (1.0, 5.0, 4.0)
    assert "ranks 0 and 1" in finding.cause


@pytest.mark.parametrize("fact", DIFFER)
def test_the_same_values_everywhere_are_found_where_ranks_must_differ(
    rank_pool: RankPool, fact: Fact
) -> None:
    assert agreement(rank_pool, fact, same=False) == [([], False), ([], False)]
    for findings, _ in agreement(rank_pool, fact, same=True):
        assert [finding.path for finding in findings] == [fact.value.partition("_")[0]]


@pytest.mark.parametrize("voter", [0, 1])
def test_one_vote_is_heard_by_all(rank_pool: RankPool, voter: int) -> None:
    verdicts = agreement(rank_pool, Fact.GRADIENTS_AGREE, same=True, voter=voter)

    assert [anywhere for _, anywhere in verdicts] == [True, True]


def test_the_mean_over_ranks_passes_and_anything_else_does_not(rank_pool: RankPool) -> None:
    right = rank_pool.run(f"{TASKS}:mean_gradient", 1.0, 30.0)
    wrong = rank_pool.run(f"{TASKS}:mean_gradient", 1.0 + 1e-5, 30.0)

    assert [result.value for result in right] == [[], []]
    for result in wrong:
        (finding,) = result.value
        assert finding.path == "gradients/weight[1]"
        assert finding.max_abs > finding.tolerance > 0
        assert "5 roundings in torch.float32" in finding.tolerance_source


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_ordinary_gradients_agree_in_no_cell_where_the_fact_is_not_stated(
    rank_pool: RankPool, accumulation: str
) -> None:
    """The reason for leaving the oracle out there, measured on the ordinary arm."""

    def agree(backward: str) -> list[tuple[bool, bool]]:
        case = parse_case(f"basic,wrapper=ddp,backward={backward},accumulation={accumulation}")
        job = make_job(case, arm=ORDINARY, seed=0)
        results = rank_pool.run(f"{TASKS}:final_gradients_agree", job, 60.0)
        return [result.value for result in results]

    assert agree("plain") == [(True, True)] * 2
    assert agree("retained") == [(False, True)] * 2
    assert agree("retained3") == [(False, True)] * 2
    # autograd.grad leaves .grad alone and returns gradients that nobody reduced.
    assert agree("autograd.grad") == [(True, False)] * 2
