from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness.ranks import RankPool
from tests.nn.sync_tasks import BODIES, STEPS
from wcn_ckpt.checkpointing.replay.known import only_writes_statistics
from wcn_ckpt.nn.functional.sync_batch_norm import batch_moments, sync_batch_norm
from wcn_ckpt.nn.modules import BasicBlock, SyncBatchNorm

TASKS = f"{Path(__file__).parent}/sync_tasks.py"


def run(pool: RankPool, task: str, payload: Any = None) -> list[Any]:
    results = pool.run(f"{TASKS}:{task}", payload, 30.0)
    for result in results:
        assert result.status == "returned", f"{result.error}\n{result.detail}"
    return [result.value for result in results]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("rows", [(4, 4), (2, 9), (1, 6), (0, 3)])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": None},
        {"momentum": 1.0},
        {"track_running_stats": False},
        {"affine": False, "eps": 0.1},
    ],
    ids=str,
)
def test_it_is_batch_norm_on_the_batches_of_all_ranks(
    rank_pool: RankPool, rows: tuple[int, int], settings: dict[str, Any]
) -> None:
    for found in run(rank_pool, "against_one_process", {"rows": rows, "settings": settings}):
        assert all(value < 1e-13 for value in found.values()), found


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 2, 2)])
@pytest.mark.parametrize(
    ("dtype", "epsilons"), [(torch.float64, 200), (torch.float32, 20), (torch.bfloat16, 2)]
)
def test_shapes_and_dtypes(
    rank_pool: RankPool, dtype: torch.dtype, epsilons: float, shape: tuple[int, ...]
) -> None:
    payload = {"rows": (3, 5), "dtype": dtype, "shape": shape}

    for found in run(rank_pool, "against_one_process", payload):
        assert max(found.values()) <= epsilons * torch.finfo(dtype).eps, found


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("body", BODIES)
def test_a_replay_takes_over_the_statistics_of_its_forward(
    rank_pool: RankPool, body: str, step: str
) -> None:
    """No second update, no second collective, and the same bits."""
    # A gradient taken inside the block has an all-reduce of its own, in each run.
    repeated = ["collectives"] if body == "a gradient inside" else []

    differences = run(rank_pool, "arms", {"body": body, "step": step, "who": (0, 1)})

    assert differences == [repeated, repeated]


@pytest.mark.parametrize("body", [body for body in BODIES if body != "a gradient inside"])
def test_ranks_may_differ_in_what_they_checkpoint(rank_pool: RankPool, body: str) -> None:
    """pytorch#43946: a replay with collectives of its own would wait for ever."""
    assert run(rank_pool, "arms", {"body": body, "step": "retained", "who": (1,)}) == [[], []]


def test_a_replay_in_another_order_is_refused(rank_pool: RankPool) -> None:
    for error in run(rank_pool, "error_of", "another order"):
        assert error.startswith("ReplayError: A replay runs SyncBatchNorm where its forward ran")


def test_one_row_on_all_ranks_together_is_refused_on_each(rank_pool: RankPool) -> None:
    for error in run(rank_pool, "error_of", "one row"):
        assert error.startswith("ValueError") and "all 2 ranks together have 1" in error


def test_a_group_of_one_is_batch_norm_without_a_collective(rank_pool: RankPool) -> None:
    assert run(rank_pool, "in_a_group_of_one") == [(True, 0)] * 2


def test_gradcheck(alone: None) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.randn(2, 2, dtype=torch.float64).requires_grad_().unbind()

    def normalized(*tensors: torch.Tensor) -> torch.Tensor:
        return sync_batch_norm(*tensors, batch_moments(tensors[0]))

    assert torch.autograd.gradcheck(normalized, (x, weight, bias))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (gradient,) = torch.autograd.grad(
            normalized(x, weight, bias).square().sum(), x, create_graph=True
        )
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": None}, {"track_running_stats": False}, {"affine": False}],
    ids=str,
)
def test_without_a_process_group_it_is_batch_norm(
    settings: dict[str, Any], dtype: torch.dtype
) -> None:
    x = torch.randn(5, 3, dtype=dtype, requires_grad=True)
    norm, plain = SyncBatchNorm(3, **settings).to(dtype), nn.BatchNorm1d(3, **settings).to(dtype)
    found = []
    for module in (norm, plain):
        outputs = [module(x), module(2 * x), module.eval()(x)]
        (gradient,) = torch.autograd.grad(sum(out.square().sum() for out in outputs), x)
        found.append([*outputs, gradient, *module.state_dict().values()])

    assert all(torch.equal(own, others) for own, others in zip(*found, strict=True))
    assert norm.state_dict().keys() == plain.state_dict().keys()


def test_parameters_in_bfloat16_go_with_statistics_in_float32() -> None:
    norm = SyncBatchNorm(3)
    for parameter in norm.parameters():
        parameter.data = parameter.data.bfloat16()

    out = norm(torch.randn(5, 3, dtype=torch.bfloat16))

    assert out.dtype is torch.bfloat16 and norm.running_mean.dtype is torch.float32
    assert norm.eval()(out).dtype is torch.bfloat16


def test_one_row_in_training_is_refused() -> None:
    norm, x = SyncBatchNorm(3), torch.ones(5, 3)
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        norm(x[:1])


def test_converting_keeps_tensors_modes_and_ties() -> None:
    block = BasicBlock(4, 4).double()
    shared = nn.Sequential(block, nn.BatchNorm2d(3, momentum=None, eps=0.5).eval(), nn.LayerNorm(2))
    shared.append(shared[1])
    before = dict(shared.state_dict(keep_vars=True))

    assert SyncBatchNorm.convert_sync_batchnorm(shared) is shared

    after = shared.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is value for name, value in before.items())
    assert type(shared[1]) is SyncBatchNorm and shared[1] is shared[3]
    assert not shared[1].training and (shared[1].momentum, shared[1].eps) == (None, 0.5)
    kinds = [type(module) for module in shared.modules()]
    assert nn.BatchNorm1d not in kinds and nn.LayerNorm in kinds
    assert type(SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))) is SyncBatchNorm
    assert type(SyncBatchNorm.convert_sync_batchnorm(nn.SyncBatchNorm(2))) is SyncBatchNorm
    assert type(copy.deepcopy(shared)[1]) is SyncBatchNorm


def test_converting_leaves_other_norms_alone() -> None:
    class Own(nn.BatchNorm1d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input

    assert type(SyncBatchNorm.convert_sync_batchnorm(Own(2))) is Own
    with pytest.raises(ValueError, match="LazyBatchNorm1d.*has not seen an input"):
        SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()))


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (torch.ones(4, 2), r"with 3 channels takes an input of shape \(N, 3, ...\), got \(4, 2\)"),
        (torch.ones(3), "takes an input of shape"),
        (torch.ones(4, 3, dtype=torch.int64), "takes floating point values, got torch.int64"),
    ],
)
def test_a_wrong_input_is_refused(x: torch.Tensor, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        SyncBatchNorm(3)(x)


def test_boundaries_know_that_its_statistics_are_written_and_not_read() -> None:
    class Reads(SyncBatchNorm):
        pass

    assert only_writes_statistics(SyncBatchNorm(2))
    assert not only_writes_statistics(Reads(2))
