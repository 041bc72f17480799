"""DDP and FSDP2 on two ranks: equal to the ordinary run, and the guard never cries wolf."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harness.ranks import RankPool
from tests.checkpointing.training import ACCUMULATIONS, OPTIMIZERS, SUBJECTS

TASKS = f"{Path(__file__).parent}/rank_tasks.py"


def run(rank_pool: RankPool, task: str, payload: Any) -> list[Any]:
    results = rank_pool.run(f"{TASKS}:{task}", payload, 60.0)
    for result in results:
        assert result.status == "returned", f"{result.error}\n{result.detail}"
    return [result.value for result in results]


def compare(rank_pool: RankPool, **payload: Any) -> None:
    payload.setdefault("optimizer", "sgd")
    assert run(rank_pool, "compare", payload) == [[], []]


DDP: dict[str, dict[str, Any]] = {
    "broadcast": {"broadcast_buffers": True},
    "no broadcast": {},
    "bucket view": {"gradient_as_bucket_view": True},
    "find unused": {"find_unused_parameters": True},
}


# With a broadcast before each forward, ordinary autograd refuses norms in joint forwards.
DDP_CASES = [
    (options, accumulation)
    for options, accumulation in product(DDP, ACCUMULATIONS)
    if options == "no broadcast"
    or accumulation == ("no_sync" if options == "broadcast" else "joint")
]


@pytest.mark.parametrize(("options", "accumulation"), DDP_CASES)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_ddp(rank_pool: RankPool, subject: str, options: str, accumulation: str) -> None:
    compare(
        rank_pool,
        subject=subject,
        wrapper="ddp",
        options={"broadcast_buffers": False} | DDP[options],
        accumulation=accumulation,
    )


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("subject", ["norms", "codebooks", "constants"])
def test_ddp_with_every_optimizer(
    rank_pool: RankPool, subject: str, optimizer: str, precision: str
) -> None:
    compare(
        rank_pool,
        subject=subject,
        wrapper="ddp",
        options={"broadcast_buffers": True},
        accumulation="no_sync",
        optimizer=optimizer,
        precision=precision,
    )


@pytest.mark.parametrize("accumulation", ["joint", "reversed_order"])
@pytest.mark.parametrize("subject", ["constants", "codebooks", "shared block"])
def test_ddp_broadcasts_buffers_between_joint_forwards(
    rank_pool: RankPool, subject: str, accumulation: str
) -> None:
    """The broadcast moves versions of constants, not their values."""
    compare(
        rank_pool,
        subject=subject,
        wrapper="ddp",
        options={"broadcast_buffers": True},
        accumulation=accumulation,
    )


@pytest.mark.parametrize("subject", ["norms", "codebooks", "constants", "shared block"])
def test_ddp_static_graph(rank_pool: RankPool, subject: str) -> None:
    compare(
        rank_pool,
        subject=subject,
        wrapper="ddp",
        options={"static_graph": True, "broadcast_buffers": False},
        accumulation="sequential",
    )


@pytest.mark.parametrize("accumulation", ["sequential", "joint", "no_sync"])
@pytest.mark.parametrize("subject", ["norms", "shared block", "shared weight"])
def test_ddp_ranks_end_with_equal_weights(
    rank_pool: RankPool, subject: str, accumulation: str
) -> None:
    payload = {
        "subject": subject,
        "accumulation": accumulation,
        "options": {"broadcast_buffers": False},
    }
    assert run(rank_pool, "ranks_agree", payload) == [True, True]


FSDP = [
    {"where": where, "reshard": reshard}
    for where, reshard in product(("inside", "outside", "both"), (True, False))
]


# Every style for one subject; for the others the style in which state is easiest to lose.
FSDP_CASES = [
    (subject, accumulation)
    for subject, accumulation in product(
        ("norms", "codebooks", "constants", "frozen layer", "nested"),
        ("sequential", "joint", "reversed_order", "retained"),
    )
    if subject == "nested" or accumulation == "joint"
]


@pytest.mark.parametrize(("subject", "accumulation"), FSDP_CASES)
@pytest.mark.parametrize("options", FSDP, ids=str)
def test_fsdp2(
    rank_pool: RankPool, subject: str, options: dict[str, Any], accumulation: str
) -> None:
    compare(rank_pool, subject=subject, wrapper="fsdp", options=options, accumulation=accumulation)


@pytest.mark.parametrize("options", [o for o in FSDP if o["where"] != "both"], ids=str)
def test_a_frozen_parameter_that_forwards_wrote_before_it_was_sharded(
    rank_pool: RankPool, options: dict[str, Any]
) -> None:
    compare(
        rank_pool,
        subject="frozen codebook",
        wrapper="fsdp",
        options=options,
        accumulation="sequential",
        write_first=True,
    )


@pytest.mark.parametrize("accumulation", ["sequential", "joint", "retained"])
@pytest.mark.parametrize("options", FSDP, ids=str)
def test_fsdp2_with_parameters_in_bf16(
    rank_pool: RankPool, options: dict[str, Any], accumulation: str
) -> None:
    compare(
        rank_pool,
        subject="layer norms",
        wrapper="fsdp",
        options=options | {"bf16": True},
        accumulation=accumulation,
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_fsdp2_with_every_optimizer(rank_pool: RankPool, where: str, optimizer: str) -> None:
    compare(
        rank_pool,
        subject="norms",
        wrapper="fsdp",
        options={"where": where, "reshard": True},
        accumulation="sequential",
        optimizer=optimizer,
    )


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_fsdp2_with_an_optimizer_step_in_backward(
    rank_pool: RankPool, where: str, reshard: bool
) -> None:
    compare(
        rank_pool,
        subject="norms",
        wrapper="fsdp",
        options={"where": where, "reshard": reshard},
        accumulation="sequential",
        in_backward=True,
    )


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_step_on_sharded_weights_before_backward_is_refused(
    rank_pool: RankPool, where: str, reshard: bool
) -> None:
    """Plain FSDP2 is silently wrong here: the version of what it gathers never moves."""
    for message in run(rank_pool, "moved_fsdp_ground", {"where": where, "reshard": reshard}):
        assert "sharded by FSDP" in message


def test_a_buffer_changed_and_broadcast_between_joint_forwards(rank_pool: RankPool) -> None:
    """pytorch#22095: the gradient of the old buffer, or an error; never silent."""
    right = run(rank_pool, "broadcast_of_a_changed_buffer", {"enable": False, "change": False})
    for got, expected in zip(
        run(rank_pool, "broadcast_of_a_changed_buffer", {"enable": True, "change": True}),
        right,
        strict=True,
    ):
        assert got == "ReplayGuardError" or got == expected


def test_every_rank_repeats_the_collectives_of_its_forward(rank_pool: RankPool) -> None:
    """pytorch#43946, fairscale#694: the same collectives on every rank, and equal sums."""
    for sums, has_gradient in run(rank_pool, "collectives", "all"):
        assert sums == [[3.0, 3.0]] * 2
        assert has_gradient


@pytest.mark.parametrize("broadcast", [True, False])
def test_a_norm_in_two_forwards_and_one_backward(rank_pool: RankPool, broadcast: bool) -> None:
    """pytorch#175024: two updates, and the statistics of the forwards alone."""
    payload = {"broadcast": broadcast, "enable": False, "backward": False}
    expected = run(rank_pool, "norm_between_two_forwards", payload)
    got = run(rank_pool, "norm_between_two_forwards", payload | {"enable": True, "backward": True})

    assert got == expected
    assert [count for count, _ in got] == [2, 2]


@pytest.mark.parametrize("reshard", [True, False])
def test_a_sharded_layer_in_a_boundary_that_is_not(rank_pool: RankPool, reshard: bool) -> None:
    """pytorch#187437, pytorch#82203, fairscale#777: two forwards and one backward."""
    options = {"where": "inside", "reshard": reshard, "root": False}
    compare(rank_pool, subject="layer norms", wrapper="fsdp", options=options, accumulation="joint")


def test_a_declared_buffer_that_only_one_rank_writes(rank_pool: RankPool) -> None:
    """Undeclared, the other rank cannot learn that the broadcast will change it."""
    assert run(rank_pool, "written_on_rank_0_only", None) == [[], []]
