"""The catalogue, injected into the lab: everything is caught, and rightly named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.faults import FAULTS, Fault
from harness.faults.injection import Injection, has_cuda, inject
from harness.faults.table import exit_status, status_text, summary
from harness.findings import CauseKind, Finding
from harness.ranks import RankPool
from harness.row import Outcome, Row


def named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught_and_rightly_named(fault: Fault, rank_pool: RankPool) -> None:
    (injection,) = inject([fault], rank_pool, cuda=has_cuda(rank_pool))
    if injection.status == "not run":
        pytest.skip(f"{fault.name} needs CUDA")

    texts = [f"{row.case}: {row.outcome} {row.findings[:3]}" for row in injection.wrong_rows]
    assert injection.status == "caught", "\n".join(texts)


def test_a_fault_that_changes_nothing_is_an_error(rank_pool: RankPool) -> None:
    mutant = replace(named("double-update"), arm="harness.arms.checkpointed:install")

    (injection,) = inject([mutant], rank_pool)

    assert injection.status == "changes nothing"
    assert exit_status([injection]) == 1


def test_a_fault_that_some_cases_do_not_see_is_missed(rank_pool: RankPool) -> None:
    needs_more = named("restored-by-copy")
    mutant = replace(needs_more, axes={"accumulation": ("one", "plain_then_checkpointed")})

    (injection,) = inject([mutant], rank_pool)

    assert injection.status == "missed"
    assert {row.case for row in injection.wrong_rows} == {"readme", "basic"}
    assert exit_status([injection]) == 1


def test_a_fault_under_another_name_is_misnamed(rank_pool: RankPool) -> None:
    fault = named("rng-not-put-back")
    other = replace(fault, sign=replace(fault.sign, kind=CauseKind.STATE_MOVED))

    (injection,) = inject([other], rank_pool)

    assert injection.status == "misnamed"
    assert status_text(injection) == "caught but misnamed: must be state_moved"
    assert exit_status([injection]) == 1


def row(outcome: Outcome, *kinds: CauseKind, path: str = "gradients/x[0]") -> Row:
    findings = tuple(
        Finding(
            rank=0,
            point="backward[0]",
            path=path,
            expected=1,
            got=2,
            cause="because it was so",
            remedy="do otherwise",
            kind=kind,
        )
        for kind in kinds
    )
    return Row(
        case="c", subject="s", axes={}, seed=0, arm="a", ranks=2, outcome=outcome, findings=findings
    )


def of(fault_name: str, *rows: Row) -> Injection:
    return Injection(named(fault_name), rows)


MOVED = CauseKind.STATE_MOVED


def test_every_case_must_show_the_fault_as_it_must() -> None:
    right = row("differs", MOVED)

    assert of("wrong-microbatch", right, right).status == "caught"
    assert of("wrong-microbatch", right, row("equal")).status == "missed"
    assert of("wrong-microbatch", right, row("expected_difference", MOVED)).status == "missed"
    assert of("wrong-microbatch", right, row("error", MOVED)).status == "misnamed"
    assert of("wrong-microbatch", right, row("differs", MOVED, path="outputs/0")).status == (
        "misnamed"
    )
    assert of("wrong-microbatch", row("equal"), row("equal")).status == "changes nothing"
    assert of("wrong-microbatch").status == "not run"


def test_another_kind_beside_the_right_one_is_a_wrong_name_unless_it_follows() -> None:
    follows = row("differs", MOVED, CauseKind.STATE_WRITTEN, CauseKind.UNKNOWN)
    strange = row("differs", MOVED, CauseKind.RANDOM_DRAWN)

    assert of("wrong-microbatch", follows).status == "caught"
    assert of("wrong-microbatch", strange).status == "misnamed"


def test_the_text_of_the_cause_is_part_of_the_name() -> None:
    counters = row("differs", CauseKind.REPEATED_UPDATE, path="buffers/norm.num_batches_tracked")

    assert of("double-update", counters).status == "misnamed"


def test_what_was_not_run_is_counted_as_such() -> None:
    injections = [of("wrong-microbatch"), of("wrong-microbatch", row("differs", MOVED))]

    assert summary(injections) == "2 faults: 1 caught, 1 not run"
    assert status_text(injections[0]) == "not run: needs CUDA"
    assert exit_status(injections) == 0
